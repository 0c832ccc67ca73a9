#!/usr/bin/env node
// main.js: a service that consumes a feed: plans a shipment for each order.
//
//     SELECT feed_subscribe('shipping', 'outbox', 'earliest', max_attempts => 5);
//     CREATE TABLE shipment (order_id bigint, planned_at timestamptz DEFAULT now());
//
//     node main.js shipping [CONSUMER [CHANNEL]]
'use strict';

const { consume } = require('./consumer.js');

// In the transaction of the page: shipments are planned once.
async function handle(client, { op, row }) {
  if (op !== 'upsert' || row.message_type !== 'OrderPlaced') return;
  await client.query('INSERT INTO shipment (order_id) VALUES ($1)', [row.data.order]);
}

const [subscription, consumer, channel] = process.argv.slice(2);
const stop = new AbortController();
process.once('SIGTERM', () => stop.abort());
process.once('SIGINT', () => stop.abort());

consume({
  subscription,
  consumer: consumer || null,
  channel: channel ?? null,
  handle,
  retryAfter: process.env.RETRY_AFTER ?? '10 s',
  signal: stop.signal,
})
  .catch((error) => {
    console.error(`${error.code ?? ''} ${error.message}\n${error.hint ?? ''}`);
    process.exitCode = 1;
  });
