// durable_client.mjs: follows a stream by the client of Durable Streams, and
// prints the number of each message until it has seen N.  If the connection is
// lost in the middle of a response, it goes on from its offset.
//
//   node durable_client.mjs URL long-poll|sse N
import { stream } from "@durable-streams/client"

const [url, live, last] = process.argv.slice(2)
let offset = "-1"

for (;;) {
  try {
    const response = await stream({ url, offset, live, json: true })

    response.subscribeJson(async (batch) => {
      for (const message of batch.items) {
        console.log(message.n)
        if (message.n === Number(last))
          process.exit(0)
      }
      offset = batch.offset
    })
    await response.closed
  } catch (error) {
    console.error(String(error))
    await new Promise((resolve) => setTimeout(resolve, 100))
  }
}
