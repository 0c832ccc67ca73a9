// consumer.js: emmett's processors on a feed.
//
//     CREATE TABLE feed_processor (processor_id text, partition text, cursor text,
//       PRIMARY KEY (processor_id, partition));
//
//     const consumer = feedConsumer({ feed: 'outbox' });
//     consumer.projector({ projection });
//     consumer.reactor({ processorId: 'mail', eachMessage });
//     await consumer.start();
//
// Each processor has its checkpoint, a cursor, in that table, and handles a page
// in one transaction with it: what it does through `context.client` takes effect
// once, also if several processes have the same processor, for they take turns.
// start() returns after stop(), when all processors have stopped, or, with
// `stopWhen: { noMessagesLeft: true }`, at the end of the feed.  It throws what
// only a human can mend; after anything else it goes on.
import { defaultProcessorPartition, projector, reactor } from '@event-driven-io/emmett';
import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';

const readCursor = async (client, id, partition) => (await client.query(
  'SELECT cursor FROM feed_processor WHERE (processor_id, partition) = ($1, $2) FOR UPDATE', [id, partition]
)).rows[0].cursor;

const storeCursor = (client, id, partition, cursor) => client.query(
  'UPDATE feed_processor SET cursor = $3 WHERE (processor_id, partition) = ($1, $2)', [id, partition, cursor]);

const checkpoints = {
  read: async ({ processorId, partition }, { client }) =>
    ({ lastCheckpoint: await readCursor(client, processorId, partition) || null }),
  store: async ({ message: { metadata: { checkpoint } }, processorId, partition }, { client }) => {
    await storeCursor(client, processorId, partition, checkpoint);
    return { success: true, newCheckpoint: checkpoint };
  },
};

const toEvent = ({ cursor, row, error }) => {
  if (error) throw new Error(error);    // no JSON of it
  const metadata = { ...row.headers, messageId: row.message_id, streamName: row.message_key, checkpoint: cursor };
  return { kind: 'Event', type: row.message_type, data: row.data, metadata };
};

const transaction = async (client, work) => {
  await client.query('BEGIN');
  try {
    const result = await work();
    await client.query('COMMIT');
    return result;
  } catch (error) {
    await client.query('ROLLBACK').catch(() => {});    // the connection may be gone
    throw error;
  }
};

// Another history, an expired cursor, no such name or database, no right
const isHopeless = (error) => /^(PF001|PF002|42...|28...|3D...)$/.test(error.code ?? '');

export const feedConsumer = ({ feed, connection = {}, batchSize = 100, stopWhen = {}, log = console.error }) => {
  const followers = [];
  let stopping, running;

  const withClient = async (work) => {
    const client = new pg.Client(connection);
    client.on('error', () => {});    // else a connection that breaks ends the process
    try {
      await client.connect();
      return await work(client);
    } finally {
      await client.end().catch(() => {});
    }
  };

  // The checkpoint, unless `startFrom` says otherwise
  const begin = async (client, processor, partition) => {
    await client.query(`INSERT INTO feed_processor VALUES ($1, $2, '') ON CONFLICT DO NOTHING`,
      [processor.id, partition]);
    const from = await processor.start({ client });
    const { rows } = await client.query('SELECT feed_head($1) AS head', [feed]);
    await storeCursor(client, processor.id, partition, from === 'END' ? rows[0].head : from.lastCheckpoint ?? '');
  };

  // Handles a page and moves the checkpoint, past what is not handled too.  A
  // processor that was stopped may not have come to the end of the page.
  const takePage = async (client, processor, partition) => {
    const cursor = await readCursor(client, processor.id, partition);
    const { rows: [{ page }] } = await client.query('SELECT feed_page($1, $2, $3) AS page', [feed, cursor, batchSize]);
    if (processor.isActive && page.entries.length > 0) await processor.handle(page.entries.map(toEvent), { client });
    if (processor.isActive && page.cursor !== cursor) await storeCursor(client, processor.id, partition, page.cursor);
    return page;
  };

  const follow = async (follower, processor, client) => {
    const partition = follower.options.partition ?? defaultProcessorPartition;
    await transaction(client, () => begin(client, processor, partition));
    follower.startFrom = 'CURRENT';
    while (processor.isActive && !stopping.signal.aborted) {
      const asked = follower.waiting.length;
      const page = await transaction(client, () => takePage(client, processor, partition));
      follower.failures = 0;
      if (page.entries.length > 0) continue;
      follower.waiting.splice(0, asked).forEach((resolve) => resolve());
      if (stopWhen.noMessagesLeft) break;
      await client.query("SELECT feed_wait($1, $2, '5 s')", [feed, page.cursor]);
    }
  };

  // A processor remembers what was rolled back, so each attempt makes a new one.
  const run = async (follower) => {
    while (!stopping.signal.aborted) {
      const processor = follower.create({ ...follower.options, startFrom: follower.startFrom, checkpoints });
      try {
        return await withClient((client) =>
          follow(follower, processor, client).finally(() => processor.close({ client })));
      } catch (error) {
        if (isHopeless(error)) throw error;
        log(`${processor.id}: ${error.message}`);
      }
      const pause = Math.min(100 * 2 ** follower.failures++, 30_000);
      await sleep(pause, undefined, { signal: stopping.signal }).catch(() => {});
    }
  };

  const add = (create) => (options) =>
    followers.push({ create, options, startFrom: options.startFrom, failures: 0, waiting: [] });

  return {
    reactor: add(reactor),
    projector: add(projector),
    start: () => {
      if (running) return running;
      stopping = new AbortController();
      const runs = followers.map((follower) => run(follower).catch((error) => { stopping.abort(); throw error; }));
      running = Promise.allSettled(runs).then(() => Promise.all(runs)).finally(() => { running = undefined; });
      return running;
    },
    stop: async () => {
      stopping?.abort();
      await running?.catch(() => {});    // start() tells
    },
    // when all that is committed now has been handled
    whenCaughtUp: async () => {
      await withClient((client) => client.query('SELECT feed_flush($1)', [feed]));
      const ended = Promise.resolve(running).then(() => { throw new Error('the consumer has stopped'); });
      const handled = followers.map(({ waiting }) => new Promise((resolve) => { waiting.push(resolve); }));
      await Promise.race([Promise.all(handled), ended]);
    },
  };
};
