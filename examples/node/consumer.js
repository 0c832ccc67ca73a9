// consumer.js: consumes a subscription until it is told to stop.
//
//     await consume({ subscription: 'shipping', handle, signal });
//
// `handle(client, { op, key, row, attempt })` is called for each entry, in order,
// inside a transaction that ends with the acknowledgement of the page: what it
// does through `client` takes effect exactly once, whatever crashes.  What it
// does elsewhere, a mail, a call to another service, happens at least once.
//
// If it throws, what it did for this entry is rolled back, and the entry is
// parked with the reason: it comes again after `retryAfter`, alone, and the
// others go on.  If it has failed as often as the subscription's max_attempts
// says, it stays in the view feedpub.parked until feed_retry() or
// feed_discard() is called.
//
// Returns when `signal` is aborted, after the page at hand.  Throws what only
// a human can mend; after anything else it connects anew and goes on.
'use strict';

const { Client } = require('pg');
const { setTimeout: sleep } = require('node:timers/promises');

const PAGE = 100;

// Other attempts will not help: the cursor of the subscription is from another
// history (PF001) or has expired (PF002); a name or a right is missing (42),
// the password is wrong (28), there is no such database (3D).
const isHopeless = (error) => /^(PF001|PF002|42...|28...|3D...)$/.test(error.code ?? '');

const advice = {
  PF001: 'Another history: a backup was restored, or a standby that lagged took over. '
    + 'Decide where to go on, then call feed_seek().',
  PF002: 'The subscription was away for longer than deletes are kept. '
    + "Empty what was made of the feed, then call feed_seek(..., 'earliest').",
};

async function consume({
  subscription,
  handle,
  signal,           // an AbortSignal
  consumer = null,  // with names, different ones, several processes may run: one
                    // of them, or one for each shard, works; the others stand by
  channel = null,   // where feed_set_channel() announces batches: LISTEN there,
                    // instead of waiting in the server
  retryAfter = '10 s',
  connection = {},  // see pg; by default PGHOST, PGDATABASE and so on
  log = console.error,
}) {
  let failures = 0;

  while (!signal.aborted) {
    const client = new Client({
      application_name: subscription,
      connectionTimeoutMillis: 10_000,
      query_timeout: 60_000,    // for a server that is gone without a word
      ...connection,
    });
    client.on('error', () => {});    // else a connection that breaks ends the process
    try {
      await client.connect();
      // In the server it waits for no more than five seconds, because that is
      // what a stop waits for.
      const news = channel === null ? null : await listen(client, channel, signal);
      const timeout = channel === null ? '5 s' : '0';

      while (!signal.aborted) {
        const found = await takePage(
          client, { subscription, consumer, handle, retryAfter, timeout, log });
        if (!found && news !== null) await news();
        failures = 0;
      }
      // so that the others need not wait until the lease has run out
      if (consumer !== null) await client.query('SELECT feed_leave($1, $2)', [subscription, consumer]);
    } catch (error) {
      if (isHopeless(error)) {
        if (advice[error.code]) error.message += `\n${advice[error.code]}`;
        throw error;
      }
      log(`${subscription}: ${error.message}`);
      // 0.1 s, 0.2 s, ... 30 s, each times 0.5 to 1, so that not all come at once
      const pause = Math.min(100 * 2 ** failures++, 30_000) * (1 + Math.random()) / 2;
      await sleep(pause, undefined, { signal }).catch(() => {});
    } finally {
      await client.end().catch(() => {});
    }
  }
}

// Handles a page and acknowledges it, or neither.  False if there was none.
async function takePage(client, {
  subscription, consumer, handle, retryAfter, timeout, log,
}) {
  const { rows } = await client.query(
    'SELECT receipt, op, key, row, attempt, error FROM feed_poll($1, $2, $3, $4)',
    [subscription, PAGE, consumer, timeout]);
  if (rows.length === 0) return false;

  await client.query('BEGIN');
  try {
    for (const entry of rows) {
      await client.query('SAVEPOINT entry');
      try {
        if (entry.error !== null) throw new Error(entry.error);    // no JSON of it
        await handle(client, entry);
        await client.query('RELEASE SAVEPOINT entry');
      } catch (error) {
        if (isHopeless(error)) throw error;
        log(`${subscription}: ${error.message}`);
        // a connection that is gone fails here: then all of the page comes again
        await client.query('ROLLBACK TO SAVEPOINT entry');
        await client.query('SELECT feed_nack($1, $2, $3, $4)',
          [subscription, entry.receipt, error.message, retryAfter]);
      }
    }
    // By the last receipt; what is parked stays parked.  It is an error, and
    // nothing of ours is committed, if another consumer has been delivered the
    // page meanwhile (PF003), or if this was committed before and the answer
    // was lost (PF005).
    await client.query('SELECT feed_ack($1, $2)',
      [subscription, rows[rows.length - 1].receipt]);
    await client.query('COMMIT');
  } catch (error) {
    await client.query('ROLLBACK').catch(() => {});    // the connection may be gone
    throw error;
  }
  return true;
}

// Waits for a notification: stops at once, and costs the server nothing.
// LISTEN comes before the first page, so nothing is between the two.  Ten
// seconds at most: entries whose retry is due are not announced, and a lease
// wants to be renewed.
async function listen(client, channel, signal) {
  let arrived = false;
  let broken = null;
  let wake = () => {};
  client.on('notification', () => { arrived = true; wake(); });
  client.on('error', (error) => { broken = error; wake(); });
  client.on('end', () => { broken ??= new Error('the connection was closed'); wake(); });
  signal.addEventListener('abort', () => wake(), { once: true });
  await client.query(`LISTEN ${client.escapeIdentifier(channel)}`);

  return async () => {
    if (!arrived && !broken && !signal.aborted) {
      let timer;
      await new Promise((resolve) => {
        wake = resolve;
        timer = setTimeout(resolve, 10_000);
      });
      clearTimeout(timer);
    }
    if (broken) throw broken;
    arrived = false;
  };
}

module.exports = { consume };
