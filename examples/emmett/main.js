#!/usr/bin/env node
// main.js: a service on emmett: a projection of orders, and mail about each.
//
//     CREATE TABLE orders (order_id bigint, state text);
//     CREATE TABLE mail (order_id bigint, sent_at timestamptz DEFAULT now());
//
//     node main.js FEED [until-caught-up]
import { projection } from '@event-driven-io/emmett';
import { feedConsumer } from './consumer.js';

const [feed, until] = process.argv.slice(2);
const consumer = feedConsumer({ feed, stopWhen: { noMessagesLeft: until === 'until-caught-up' } });

consumer.projector({
  projection: projection({
    name: 'orders',
    canHandle: ['OrderPlaced'],
    handle: async (events, { client }) => {
      for (const { data } of events) await client.query("INSERT INTO orders VALUES ($1, 'placed')", [data.order]);
    },
  }),
});

// Mail that is sent elsewhere, not in this database, is sent at least once.
consumer.reactor({
  processorId: 'mail',
  canHandle: ['OrderPlaced'],
  eachMessage: async ({ data }, { client }) => {
    await client.query('INSERT INTO mail (order_id) VALUES ($1)', [data.order]);
  },
});

process.once('SIGTERM', () => consumer.stop());
process.once('SIGINT', () => consumer.stop());

try {
  const running = consumer.start();
  consumer.whenCaughtUp().then(() => console.log('caught up'), () => {});    // if not, start() tells
  await running;
} catch (error) {
  console.error(`${error.code ?? ''} ${error.message}\n${error.hint ?? ''}`);
  process.exitCode = 1;
}
