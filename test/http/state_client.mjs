// state_client.mjs: follows three tables by the client of Durable Streams' State
// Protocol, and prints each state that it shows: of each table, the keys with the
// column v.  In a browser it sends them to where its page is from.
//
//   node state_client.mjs URL memory|collections
//   page.html?url=URL&kind=memory|collections
import { stream } from "@durable-streams/client"
import { MaterializedState, isChangeEvent, isControlEvent } from "@durable-streams/state"
import { createStreamDB, createStateSchema } from "@durable-streams/state/db"

const browser = typeof location !== "undefined"
const query = browser ? new URLSearchParams(location.search) : undefined
const [url, kind] = browser ? [query.get("url"), query.get("kind")] : process.argv.slice(2)
const tables = ["accounts", "lines", "names"]
let sent = Promise.resolve()

function show(rows) {
  const text = tables.map((table) => rows(table).map(([key, row]) => `${key}=${row.v}`).sort().join(" ")).join("|")

  if (browser)
    sent = sent.then(() => fetch("/seen", { method: "POST", body: `${text}\n` }))
  else
    console.log(text)
}

const pause = () => new Promise((resolve) => setTimeout(resolve, 100))

async function memory() {
  const state = new MaterializedState()
  let offset = "-1"

  for (;;) {
    try {
      const response = await stream({ url, offset, live: "sse", json: true })

      response.subscribeJson(async (batch) => {
        for (const event of batch.items) {
          if (isChangeEvent(event))
            state.apply(event)
          else if (isControlEvent(event) && event.headers.control === "reset")
            state.clear()
        }
        offset = batch.offset
        show((table) => [...state.getType(`public.${table}`)])
      })
      await response.closed
    } catch (error) {
      console.error(String(error))
    }
    await pause()
  }
}

// A collection for each table.  If its stream ends, it begins anew.
async function collections() {
  const any = { "~standard": { version: 1, vendor: "none", validate: (value) => ({ value }) } }
  const state = createStateSchema(Object.fromEntries(tables.map((table) =>
    [table, { schema: any, type: `public.${table}`, primaryKey: "the key" }])))

  for (;;) {
    const failed = {}
    failed.promise = new Promise((resolve) => { failed.resolve = resolve })
    const db = createStreamDB({
      streamOptions: { url, contentType: "application/json" },
      live: "long-poll",
      state,
      onBatch: () => setTimeout(() => {
        if (tables.every((table) => db.collections[table].isReady()))
          show((table) => [...db.collections[table].entries()])
      }),
    })

    try {
      await db.preload()
      console.error("ready")
      await failed.promise
    } catch (error) {
      console.error(String(error))
    }
    db.close()
    await pause()
  }
}

await (kind === "memory" ? memory() : collections())
