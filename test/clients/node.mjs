// node.mjs prepared|unprepared [feature]: what works in node's pg.  Prints a line
// "feature: works", "feature: no: SQLSTATE" or what the client makes of it;
// test/long/325_clients.pl makes the feeds and says what the features are.
import pg from 'pg';

const only = process.argv[3];
const prepared = process.argv[2] === 'prepared';
const name = prepared ? 'changes' : undefined;
const [first, second, piped] = [{}, {}, { pipeline: true }].map((options) => new pg.Client(options));
const rows = async (sql, values = [], client = first) => (await client.query(sql, values)).rows;
const value = async (sql, values, client) => Object.values((await rows(sql, values, client))[0])[0];

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
  while (!ended && await value(`SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Extension'
    AND query LIKE '%feed_wait%' AND pid <> pg_backend_pid()`, [], second) !== '1');
}
async function altered(column, ddl, entry = '(entry).*') {
  const config = { name: name && ddl.slice(0, 40), text: `SELECT ${entry} FROM feed_read(NULL::outbox, $1, $2)`, values: ['', 10] };
  const has = async () => column in ((row) => row.entry ?? row)((await first.query(config)).rows[0]);
  for (let i = 0; i < 6; i++) await has();
  await second.query(ddl);
  if (!await has()) throw new Error('missing');
}

await Promise.all([first, second, piped].map((client) => client.connect()));
console.log(`setting: ${name ? '`name`' : 'no `name`'}`);
await report('page', async () => {
  const keys = [];
  let cursor = '';
  for (let page; !page || page.length > 0;) {
    page = await rows('SELECT cursor, (entry).message_key AS key FROM feed_read(NULL::outbox, $1, $2)', [cursor, 2]);
    keys.push(...page.map((row) => row.key));
    cursor = page.at(-1)?.cursor ?? cursor;
  }
  expect(keys, '1,2,3,4,5');
  expect((await value('SELECT feed_page($1::regclass, $2, $3)', ['outbox', cursor, 2])).entries.length, 0);
});
await report('uncast', async () => {
  expect(await value('SELECT feed_wait($1, $2, $3)', ['outbox', '', '0 s']), true);
  expect((await rows('SELECT * FROM feed_fetch(NULL::outbox, $1, $2, $3)', ['0', 0, 2])).length, 2);
});
const anew = 'ALTER FUNCTION feed_read(anyelement, text, integer, integer, integer, text[]) COST 1000';
await report('add', () => altered('one', 'ALTER TABLE outbox ADD COLUMN one int'));
await report('replan', () => altered('two', `ALTER TABLE outbox ADD COLUMN two int; ${anew}`));
await report('retype', () => altered('two', 'ALTER TABLE outbox ALTER COLUMN two TYPE bigint'));
await report('to_jsonb', () => altered('three', 'ALTER TABLE outbox ADD COLUMN three int', 'to_jsonb(entry) AS entry'));
await report('call', async () => {
  expect(await value('CALL feed_await($1::regclass, $2, $3::interval)', ['outbox', '', '1 min']), true);
});
await report('pipeline', async () => {
  const pages = await Promise.all([1, 2, 3].map((n) => value("SELECT feed_page('outbox', '', $1)", [n], piped)));
  expect(pages.map((page) => page.entries.length), '1,2,3');
});
await report('declare', async () => {
  const keys = [];
  await rows('BEGIN');
  await rows("DECLARE c CURSOR FOR SELECT message_key FROM feed_fetch(NULL::outbox, '0', 0, 100)");
  for (let page; !page || page.length > 0; keys.push(...page.map((row) => row.message_key)))
    page = await rows('FETCH 2 FROM c');
  await rows('COMMIT');
  expect(keys, '1,2,3,4,5');
});
const [row] = await rows("SELECT feed_xid, feed_pos, scheduled FROM feed_fetch(NULL::outbox, '0', 0, 1)");
const [read] = await rows("SELECT entry, feed_page('outbox', '', 1) AS page FROM feed_read(NULL::outbox, '', 1)");
const type = (v) => typeof v === 'object' ? v.constructor.name : typeof v;
await report('xid8', () => type(row.feed_xid));
await report('bigint', () => type(row.feed_pos));
await report('timestamptz', () => type(row.scheduled));
await report('json', () => type(read.page));
await report('entry', () => type(read.entry));
await report('digits', () => String(read.page.entries[0].row.data.n) === '9007199254740993' ? 'works' : 'no: rounded');
await report('ack', async () => {
  let receipt;
  for (const end of ['ROLLBACK', 'COMMIT']) {
    await rows('BEGIN');
    const page = await rows("SELECT receipt, key ->> 'message_key' AS key FROM feed_poll($1, $2)", ['mail', 2]);
    for (const entry of page) await rows('INSERT INTO effect VALUES ($1)', [entry.key]);
    receipt = page.at(-1).receipt;
    expect(await value('SELECT feed_ack($1, $2)', ['mail', receipt]), true);
    await rows(end);
  }
  expect((await rows('SELECT key FROM effect ORDER BY key')).map((effect) => effect.key), '1,2');
  await rows('SELECT feed_ack($1, $2)', ['mail', receipt]).then(() => expect('no error', 'PF005'), (error) => expect(error.code, 'PF005'));
});
const wait = 'SELECT feed_wait($1::regclass, feed_head($1::regclass), $2::interval)';
await report('wait', async () => {
  const waiting = value(wait, ['outbox', '1 min']);
  await waits(waiting);
  await rows("INSERT INTO outbox (message_type, data) VALUES ('News', '6')", [], second);
  expect(await waiting, true);
});
await report('session', async () => {
  const config = { name: name && 'session', text: 'SELECT feed_page($1::regclass)', values: ['outbox'] };
  await rows('BEGIN', [], second);
  for (let i = 0; i < 6; i++) await first.query(config);
  await rows('COMMIT', [], second);
  await rows('BEGIN');
  await first.query(config);
  await rows('COMMIT');
});
await Promise.all([first, second, piped].map((client) => client.end()));
