// node.js: pages of a feed over HTTP in fifty lines, as one would write them:
// what bench/run compares feedpub-http with.  node node.js PORT
'use strict';
const http = require('http');
const { Pool, types } = require('pg');

types.setTypeParser(types.builtins.JSON, (text) => text);
const pool = new Pool({ max: 4 });

function problem(response, status, detail) {
	response.writeHead(status, { 'Content-Type': 'application/problem+json' });
	response.end(JSON.stringify({ status, detail }));
}

http.createServer(async (request, response) => {
	const url = new URL(request.url, 'http://localhost');
	const name = /^\/feeds\/([^/]+)$/.exec(url.pathname);
	if (request.method !== 'GET' || !name) {
		problem(response, 404, 'there is no such resource');
		return;
	}
	try {
		const result = await pool.query({
			name: 'page',
			text: 'SELECT feed_page($1::regclass, $2, $3) AS page',
			values: [
				decodeURIComponent(name[1]),
				url.searchParams.get('after') || '',
				Math.min(Number(url.searchParams.get('limit')) || 100, 1000),
			],
		});
		const page = Buffer.from(result.rows[0].page);
		response.writeHead(200, {
			'Content-Type': 'application/json',
			'Content-Length': page.length,
			'Cache-Control': 'no-cache',
		});
		response.end(page);
	} catch (error) {
		problem(response, error.code ? 400 : 503, error.message);
	}
}).listen(Number(process.argv[2]), '127.0.0.1');
