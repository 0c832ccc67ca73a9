// Uses the pages for people in headless Chromium, and prints a line for each thing
// that it expects: "ok ..." or "not ok ...".  Arguments: the URL of feedpub-http,
// the path of a feed with a hostile name, and that of a subscription of it.
import puppeteer from 'puppeteer-core';
import { readFileSync } from 'fs';
import { createRequire } from 'module';

const [base, hostileFeed, hostileMail] = process.argv.slice(2);
const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const browser = await puppeteer.launch({ executablePath: '/usr/bin/chromium',
	args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage'] });
const problems = [];

function expect(ok, what, seen) {
	console.log(`${ok ? 'ok' : 'not ok'} ${what}${ok || seen === undefined ? '' : ': ' + JSON.stringify(seen)}`);
}

async function open(path, { width = 1200, scheme = 'light', script = true } = {}) {
	const page = await browser.newPage();
	page.on('console', message => { if (!/status of 4/.test(message.text())) problems.push(`${path}: ${message.text()}`); });
	page.on('pageerror', error => problems.push(`${path}: ${error.message}`));
	page.on('dialog', dialog => { page.asked = dialog.message(); dialog.accept(); });
	await page.setJavaScriptEnabled(script);
	await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: scheme }]);
	await page.setViewport({ width, height: 800 });
	await page.goto(base + path, { waitUntil: 'load' });
	return page;
}

async function until(condition, what) {
	let seen;
	for (let i = 0; i < 600; i++) {
		try { seen = await condition(); } catch { seen = undefined; }	// while the page changes
		if (seen) break;
		await new Promise(done => setTimeout(done, 100));
	}
	expect(seen, what);
}

async function append(number) {
	const answer = await fetch(`${base}/streams/outbox`, { method: 'POST', headers: { 'Content-Type': 'application/json', 'Message-Type': 'Live' },
		body: JSON.stringify({ live: number, html: '<img src=x onerror="document.title=1">', large: 'LARGE' }).replace('"LARGE"', '12345678901234567890') });
	if (answer.status !== 204) throw new Error(`append: ${answer.status} ${await answer.text()}`);
}

const lives = page => page.$$eval('#entries pre', all => all.map(pre => /"live":\s*(\d+)/.exec(pre.textContent)?.[1]).filter(Boolean).join(' '));

// Press Tab until something has the focus; it has to be seen there.
async function tabTo(page, selector) {
	for (let i = 0; i < 60; i++) {
		await page.keyboard.press('Tab');
		if (await page.evaluate(s => document.activeElement.matches(s), selector))
			return page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle !== 'none');
	}
	return false;
}

// Nothing that axe finds, nothing that is wider than the window
for (const path of ['/', '/feeds/outbox', '/feeds/outbox?after=earliest', hostileFeed, '/subscriptions/mail', hostileMail, '/feeds/nothing'])
	for (const width of [320, 1200])
		for (const scheme of ['light', 'dark']) {
			const page = await open(path, { width, scheme });
			await page.evaluate(() => document.querySelectorAll('details').forEach(details => { details.open = true; }));
			const found = await page.evaluate(`(async () => { ${axe}; return (await axe.run()).violations
				.map(v => [v.id, v.impact, v.nodes[0].html]); })()`);
			expect(found.length === 0, `axe: ${path}, ${width}, ${scheme}`, found);
			const wide = await page.evaluate(() => document.documentElement.scrollWidth);
			expect(wide <= width, `no wider than the window: ${path}, ${width}`, wide);
			await page.close();
		}

// Live
let page = await open('/feeds/outbox?after=&type=', { width: 320 });
await until(() => page.$eval('#live [role=status]', status => status.textContent === 'Live.'), 'it is live');
await append(1);
await until(async () => await lives(page) === '1', 'an entry comes by itself');
expect(await page.$eval('#entries pre', pre => pre.textContent.includes('12345678901234567890')), 'numbers keep their digits');
expect(await page.$eval('#entries summary', summary => /upsert.*Live/.test(summary.textContent)), 'and its line tells what it is');
expect(await tabTo(page, '#live button'), 'Tab gets to the button');
await page.keyboard.press('Enter');
expect(await page.$eval('#live button', button => button.getAttribute('aria-pressed') === 'true' && button.textContent === 'Continue'), 'Enter pauses');
await append(2);
await append(3);
await new Promise(done => setTimeout(done, 1000));
expect(await lives(page) === '1', 'nothing comes then');
await page.keyboard.press('Space');
await until(async () => await lives(page) === '3 2 1', 'Space goes on, and nothing is missed');
await page.keyboard.press('Tab');
await page.keyboard.press('Enter');
expect(await page.evaluate(() => document.activeElement.matches('summary') && document.activeElement.parentElement.open), 'Enter opens an entry');
expect(await page.evaluate(() => !document.querySelector('img') && document.title === 'outbox - feedpub'), 'what an entry says is no HTML');
await page.close();

// A subscription, by keyboard
page = await open('/subscriptions/mail', { width: 320 });
const left = () => page.$$eval('button.discard', all => all.length);
const many = await left();
expect(await tabTo(page, 'button.discard'), 'Tab gets to Discard');
await Promise.all([page.waitForNavigation(), page.keyboard.press('Enter')]);
expect(/^Discard/.test(page.asked ?? ''), 'it asks', page.asked);
expect(new URL(page.url()).pathname === '/subscriptions/mail' && await left() === many - 1, 'Discard leads back, and the entry is gone');
expect(await tabTo(page, 'button.retry'), 'Tab gets to Retry');
await Promise.all([page.waitForNavigation(), page.keyboard.press('Enter')]);
expect(await page.$eval('.entries .state', state => state.textContent === 'due'), 'Retry all');
await page.close();

// It is loaded again by itself, but not while somebody is at work in it.
page = await open('/');
await page.evaluate(() => { document.querySelector('h2').dataset.old = 1; });
await until(() => page.evaluate(() => document.querySelector('h2') && !document.querySelector('[data-old]')), 'the overview is loaded again');
await page.evaluate(() => { document.querySelector('h2').dataset.old = 1; document.querySelector('main a').focus(); });
await new Promise(done => setTimeout(done, 6000));
expect(await page.evaluate(() => document.querySelector('[data-old]') && document.activeElement.matches('main a')), 'but not under the keyboard');
await page.close();

// Without the script
page = await open('/feeds/outbox', { script: false, width: 320 });
expect(await page.$eval('#live', live => live.hidden), 'without the script there is no button that does nothing');
expect((await page.$$('#entries details')).length > 3, 'there are entries');
await page.type('input[name=type]', 'Live');
await Promise.all([page.waitForNavigation(), page.click('.filter button')]);
expect(await lives(page) === '3 2 1', 'the form asks for a type');
await page.goto(base + hostileMail);
expect((await page.$$('button.discard')).length > 0, 'there are buttons');
const was = (await page.$$('button.discard')).length;
await Promise.all([page.waitForNavigation(), page.click('button.discard')]);
expect((await page.$$('button.discard')).length === was - 1, 'Discard works without the script');
await page.close();

expect(problems.length === 0, 'no error, and nothing that the policy refuses', problems);
await browser.close();
console.log('ok all of it');
