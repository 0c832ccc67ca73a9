/*
 * The pages of feedpub-http for people.  They work without this: it shows new
 * entries of a feed as they come, loads other pages again, and asks before
 * something is discarded.  What comes from a feed becomes text, never HTML.
 */
'use strict';

const SHOWN = 100;		// entries of a list
const DEPTH = 8;		// how deep JSON is indented
const PART = 160;		// characters of a part of an entry's line
const WHOLE = 16384;	// and of its JSON
const EVERY = 250;		// ms between changes of the page

const live = document.getElementById('live');
const list = document.getElementById('entries');
const main = document.getElementById('main');

function element(name, className, text) {
	const made = document.createElement(name);
	if (className) made.className = className;
	if (text !== undefined) made.textContent = text;
	return made;
}

// Line breaks and indents where they mean nothing: numbers keep their digits.
function indent(json) {
	let depth = 0;
	const text = json.slice(0, WHOLE).replace(/"(?:[^"\\]|\\.)*"?|[{[]\s*[}\]]|[{[,]\s*|[}\]]/g, token => {
		const line = at => at <= DEPTH ? '\n' + '  '.repeat(Math.max(at, 0)) : '';
		if (token[0] === '"' || token.length > 1 && /[}\]]$/.test(token)) return token;
		if (token[0] === ',') return ',' + (line(depth) || token.slice(1));
		if (token[0] === '{' || token[0] === '[') return token[0] + line(++depth);
		depth--;
		return (depth < DEPTH ? line(depth) : '') + token;
	});
	return json.length > WHOLE ? `${text}\n... ${json.length - WHOLE} characters more` : text;
}

function cut(text) {
	return text.length > PART ? text.slice(0, PART) + '...' : text;
}

// An entry as the server makes it: http/forms/entry.c
function entryItem(json) {
	const item = element('li');
	const details = element('details');
	const summary = element('summary');
	let entry = {};
	try { entry = JSON.parse(json); } catch { /* it is shown as it is */ }
	const part = (name, value) => {
		if (value === undefined || value === null) return;
		summary.append(element('span', name, cut(typeof value === 'string' ? value : JSON.stringify(value))), ' ');
	};
	part('op', entry.op);
	part('type', entry.relation ?? entry.row?.message_type);
	part('key', entry.key);
	if (entry.error !== undefined) summary.append(element('strong', '', 'error'), ' ');
	part('time', entry.published_at);
	details.append(summary, element('pre', '', indent(json)));
	item.append(details);
	return item;
}

// Show what happens, and let it be paused.
function control(begin, end) {
	const button = live.querySelector('button');
	const status = live.querySelector('[role=status]');
	let paused = false;
	live.hidden = false;
	button.addEventListener('click', () => {
		paused = !paused;
		button.setAttribute('aria-pressed', paused);
		button.textContent = paused ? 'Continue' : 'Pause';
		if (paused) {
			end();
			status.textContent = 'Paused.';
		} else begin();
	});
	begin();
	return text => { if (!paused && status.textContent !== text) status.textContent = text; };
}

function follow() {
	const url = new URL(location);
	const count = live.querySelector('.count');
	let after = list.dataset.after;
	let coming = [];
	let total = 0;
	let source;
	let timer;
	let say = () => {};

	const show = () => {
		if (coming.length === 0) return;
		document.getElementById('none')?.remove();
		list.classList.add('reading');
		list.prepend(...coming.map(entryItem).reverse());
		coming = [];
		while (list.children.length > SHOWN) list.lastElementChild.remove();
		count.textContent = `${total} new`;
	};
	const begin = () => {
		// A form sends empty fields, too.
		for (const [name, value] of [...url.searchParams]) if (value === '' || name === 'limit') url.searchParams.delete(name);
		url.searchParams.set('after', after);
		source = new EventSource(url);
		source.onopen = () => say('Live.');
		source.onmessage = event => {
			after = event.lastEventId;
			total++;
			coming.push(event.data);
			if (coming.length > SHOWN) coming.shift();
		};
		// It connects again by itself, but not after a status such as 503.
		source.onerror = () => {
			say('Not connected.');
			if (source.readyState !== EventSource.CLOSED) return;
			clearTimeout(timer);
			timer = setTimeout(begin, 5000);
		};
	};
	say = control(begin, () => { clearTimeout(timer); source.close(); });
	setInterval(show, EVERY);
}

// Load the page again, unless somebody is at work in it.
function refresh() {
	const seconds = Number(main.dataset.refresh);
	let timer;
	let say = () => {};

	const load = async () => {
		const busy = document.hidden || main.querySelector('details[open]') ||
			main.contains(document.activeElement) && document.activeElement !== main && !live.contains(document.activeElement) ||
			String(getSelection()) !== '';
		if (!busy) {
			try {
				const answer = await fetch(location, { headers: { Accept: 'text/html' } });
				if (!answer.ok) throw new Error(answer.status);
				const page = new DOMParser().parseFromString(await answer.text(), 'text/html').getElementById('main');
				while (live.nextSibling) live.nextSibling.remove();
				while (page.firstElementChild.id !== 'live') page.firstElementChild.remove();
				page.firstElementChild.remove();
				live.after(...document.adoptNode(page).childNodes);
				say(`Loaded every ${seconds} s.`);
			} catch { say('Not connected.'); }
		}
	};
	say = control(() => { timer = setInterval(load, seconds * 1000); }, () => clearInterval(timer));
	say(`Loaded every ${seconds} s.`);
}

document.addEventListener('submit', event => {
	if (event.target.querySelector('button.discard') && !confirm('Discard this entry? It will not be delivered again.')) event.preventDefault();
});
if (live && list?.dataset.after) follow();
else if (live && main.dataset.refresh) refresh();
