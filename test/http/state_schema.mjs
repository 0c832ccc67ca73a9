// state_schema.mjs: reads a stream to its end, and says how many of its messages
// do not fit the schema that comes with the State Protocol; and waits for a
// transaction by its id.
//
//   node state_schema.mjs URL TXID
import { readFileSync } from "node:fs"
import { createRequire } from "node:module"
import Ajv from "ajv"
import addFormats from "ajv-formats"
import { createStreamDB, createStateSchema } from "@durable-streams/state/db"

const [url, txid] = process.argv.slice(2)
const path = createRequire(import.meta.url).resolve("@durable-streams/state/package.json")
const ajv = addFormats(new Ajv({ strict: false }))
const fits = ajv.compile(JSON.parse(readFileSync(path.replace("package.json", "state-protocol.schema.json"), "utf8")))
let messages = 0
let invalid = 0

for (let offset = "-1", more = true; more;) {
  const response = await fetch(`${url}?limit=100&offset=${offset}`)

  for (const message of await response.json()) {
    messages++
    if (!fits(message)) {
      invalid++
      console.error(JSON.stringify(message), ajv.errorsText(fits.errors))
    }
  }
  offset = response.headers.get("stream-next-offset")
  more = response.headers.get("stream-up-to-date") !== "true"
}

const any = { "~standard": { version: 1, vendor: "none", validate: (value) => ({ value }) } }
const db = createStreamDB({
  streamOptions: { url, contentType: "application/json" },
  state: createStateSchema({ names: { schema: any, type: "public.names", primaryKey: "the key" } }),
})
await db.preload()
await db.utils.awaitTxId(txid)
console.log(`${messages} messages, ${invalid} invalid; the transaction has come`)
process.exit(0)
