// postgres.mjs prepared|unprepared [feature]: what works in postgres.js.  See node.mjs.
import postgres from 'postgres';

const only = process.argv[3];
const setting = process.argv[2] === 'prepared' ? {} : { prepare: false };
const connect = () => postgres({ max: 1, onnotice() {}, ...setting });
const [first, second] = [connect(), connect()];
const value = async (query) => Object.values((await query)[0])[0];

async function report(feature, check) {
  if (only && feature !== only) return;
  let result;
  try {
    result = await check() ?? 'works';
  } catch (error) {
    result = `no: ${error.code ?? error.message}`;
  }
  console.log(`${feature}: ${result}`);
}
function expect(got, wanted) {
  if (String(got) !== String(wanted)) throw new Error(`${got} in place of ${wanted}`);
}
async function waits(query) {
  let ended = false;
  query.catch(() => {}).then(() => { ended = true; });
  while (!ended && await value(second`SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Extension'
    AND query LIKE '%feed_wait%' AND pid <> pg_backend_pid()`) !== '1');
}
async function altered(column, ddl, entry = '(entry).*') {
  const has = async () => column in ((row) => row.entry ?? row)(
    (await first`SELECT ${first.unsafe(entry)}, ${ddl} AS ddl FROM feed_read(NULL::outbox, ${''}, ${10})`)[0]);
  for (let i = 0; i < 6; i++) await has();
  await second.unsafe(ddl);
  if (!await has()) throw new Error('missing');
}

console.log(`setting: ${'`'}prepare: ${setting.prepare ?? true}${'`'}`);
await report('page', async () => {
  const keys = [];
  let cursor = '';
  for (let page; !page || page.length > 0;) {
    page = await first`SELECT cursor, (entry).message_key AS key FROM feed_read(NULL::outbox, ${cursor}, ${2})`;
    keys.push(...page.map((row) => row.key));
    cursor = page.at(-1)?.cursor ?? cursor;
  }
  expect(keys, '1,2,3,4,5');
  expect((await value(first`SELECT feed_page(${'outbox'}::regclass, ${cursor}, ${2})`)).entries.length, 0);
});
await report('uncast', async () => {
  expect(await value(first`SELECT feed_wait(${'outbox'}, ${''}, ${'0 s'})`), true);
  expect((await first`SELECT * FROM feed_fetch(NULL::outbox, ${'0'}, ${0}, ${2})`).length, 2);
});
const anew = 'ALTER FUNCTION feed_read(anyelement, text, integer, integer, integer, text[]) COST 1000';
await report('add', () => altered('one', 'ALTER TABLE outbox ADD COLUMN one int'));
await report('replan', () => altered('two', `ALTER TABLE outbox ADD COLUMN two int; ${anew}`));
await report('retype', () => altered('two', 'ALTER TABLE outbox ALTER COLUMN two TYPE bigint'));
await report('to_jsonb', () => altered('three', 'ALTER TABLE outbox ADD COLUMN three int', 'to_jsonb(entry) AS entry'));
await report('call', async () => {
  expect(await value(first`CALL feed_await(${'outbox'}::regclass, ${''}, ${'1 min'}::interval)`), true);
});
await report('pipeline', async () => {
  const pages = await Promise.all([1, 2, 3].map((n) => value(first`SELECT feed_page('outbox', '', ${n})`)));
  expect(pages.map((page) => page.entries.length), '1,2,3');
});
await report('cursor', async () => {
  const pages = [];
  await first`SELECT message_key FROM feed_fetch(NULL::outbox, ${'0'}, ${0}, ${100})`.cursor(2, (page) => {
    pages.push(page.map((row) => row.message_key).join(' '));
  });
  expect(pages, '1 2,3 4,5');
});
await report('declare', async () => {
  const keys = [];
  await first.begin(async (transaction) => {
    await transaction`DECLARE c CURSOR FOR SELECT message_key FROM feed_fetch(NULL::outbox, '0', 0, 100)`;
    for (let page; !page || page.length > 0; keys.push(...page.map((row) => row.message_key)))
      page = await transaction`FETCH 2 FROM c`;
  });
  expect(keys, '1,2,3,4,5');
});
const [row] = await first`SELECT feed_xid, feed_pos, scheduled FROM feed_fetch(NULL::outbox, '0', 0, 1)`;
const [read] = await first`SELECT entry, feed_page('outbox', '', 1) AS page FROM feed_read(NULL::outbox, '', 1)`;
const type = (v) => typeof v === 'object' ? v.constructor.name : typeof v;
await report('xid8', () => type(row.feed_xid));
await report('bigint', () => type(row.feed_pos));
await report('timestamptz', () => type(row.scheduled));
await report('json', () => type(read.page));
await report('entry', () => type(read.entry));
await report('digits', () => String(read.page.entries[0].row.data.n) === '9007199254740993' ? 'works' : 'no: rounded');
await report('ack', async () => {
  let receipt;
  for (const commit of [false, true]) {
    await first.begin(async (transaction) => {
      const page = await transaction`SELECT receipt, key ->> 'message_key' AS key FROM feed_poll(${'mail'}, ${2})`;
      for (const entry of page) await transaction`INSERT INTO effect VALUES (${entry.key})`;
      receipt = page.at(-1).receipt;
      expect(await value(transaction`SELECT feed_ack(${'mail'}, ${receipt})`), true);
      if (!commit) throw new Error('roll back');
    }).catch((error) => expect(error.message, 'roll back'));
  }
  expect((await first`SELECT key FROM effect ORDER BY key`).map((effect) => effect.key), '1,2');
  await first`SELECT feed_ack(${'mail'}, ${receipt})`.then(() => expect('no error', 'PF005'), (error) => expect(error.code, 'PF005'));
});
const wait = () => first`SELECT feed_wait(${'outbox'}::regclass, feed_head(${'outbox'}::regclass), ${'1 min'}::interval)`;
await report('wait', async () => {
  const waiting = value(wait());
  await waits(waiting);
  await second`INSERT INTO outbox (message_type, data) VALUES ('News', '6')`;
  expect(await waiting, true);
});
await report('cancel', async () => {
  const waiting = wait();
  const ended = waiting.then(() => 'no error', (error) => error.code);
  await waits(ended);
  waiting.cancel();
  expect(await ended, '57014');
  expect(await value(first`SELECT 1`), 1);
});
await report('session', async () => {
  const page = (on = first) => on`SELECT feed_page(${'outbox'}::regclass)`;
  await second.begin(async (transaction) => {
    await transaction`SELECT 1`;
    for (let i = 0; i < 6; i++) await page();
  });
  await first.begin((transaction) => page(transaction));
});
await Promise.all([first.end(), second.end()]);
