#!/usr/bin/env node
// main.js: a service that consumes a feed: plans a shipment for each order.
//
//     SELECT feed_subscribe('shipping', 'outbox', 'earliest');
//     CREATE TABLE shipment (order_id bigint, planned_at timestamptz DEFAULT now());
//
//     node main.js shipping [CONSUMER [CHANNEL]]
'use strict';

const { consume } = require('./consumer.js');

// In the transaction of the page: shipments are planned once.
async function handle(client, { op, entry }) {
  if (op !== 'upsert' || entry.message_type !== 'OrderPlaced') return;
  await client.query('INSERT INTO shipment (order_id) VALUES ($1)', [entry.data.order]);
}

const [subscription, consumer = '', channel = null] = process.argv.slice(2);
const stop = new AbortController();
process.once('SIGTERM', () => stop.abort());
process.once('SIGINT', () => stop.abort());

consume({ subscription, consumer, channel, handle, signal: stop.signal })
  .catch((error) => {
    console.error(`${error.code ?? ''} ${error.message}\n${error.hint ?? ''}`);
    process.exitCode = 1;
  });
