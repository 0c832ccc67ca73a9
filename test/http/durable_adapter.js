// durable_adapter.js: what the conformance suite of Durable Streams needs
// beside feedpub-http.  A proxy, whose port it prints.  PUT, by which the suite
// makes a stream, becomes feed_create() through psql; everything else is passed
// on, /v1/stream/PATH as /streams/NAME.
//
//   node durable_adapter.js URL-OF-FEEDPUB-HTTP CONNINFO
const http = require('http');
const { createHash } = require('crypto');
const { execFile } = require('child_process');

const [upstream, conninfo] = process.argv.slice(2);
const agent = new http.Agent({ keepAlive: true });
const made = new Map(); // the content type of each stream
const notOffered = ['stream-ttl', 'stream-expires-at', 'stream-closed',
    'stream-forked-from', 'stream-fork-sub-offset'];

// A name that needs no quotes; paths can be longer than names.
const nameOf = (path) => 's' + createHash('md5').update(path).digest('hex');

function pass(request, response, path, query) {
    const target = new URL(upstream + '/streams/' + nameOf(path) + query);
    const passed = http.request(target, { method: request.method, headers: request.headers, agent }, (answer) => {
        response.writeHead(answer.statusCode, answer.headers);
        response.flushHeaders();
        answer.pipe(response);
        answer.on('error', () => response.destroy());
    });

    passed.on('error', () => response.destroy());
    response.on('close', () => passed.destroy());
    request.pipe(passed);
}

function create(path, type) {
    const media = type.split(';')[0].trim().toLowerCase();
    const column = media === 'application/json' ? 'json' : media.startsWith('text/') ? 'text' : 'bytea';
    const name = nameOf(path);
    const sql = `SELECT feed_create('${name}', '${column}'); COMMENT ON COLUMN ${name}.data IS '${media}'`;

    return new Promise((resolve, reject) =>
        execFile('psql', ['-XqAt', '-v', 'ON_ERROR_STOP=1', '-d', conninfo, '-c', sql],
            (error) => (error ? reject(error) : resolve())));
}

// Append the first content, and ask for the offset.
async function fill(path, type, body) {
    const url = upstream + '/streams/' + nameOf(path);

    if (body.length > 0 && body.toString() !== '[]') {
        const answer = await fetch(url, { method: 'POST', headers: { 'content-type': type }, body });

        if (answer.status !== 204)
            return answer;
    }
    return fetch(url, { method: 'HEAD' });
}

async function put(request, response, path) {
    const type = request.headers['content-type'] || 'application/octet-stream';
    const chunks = [];
    const headers = { 'x-content-type-options': 'nosniff', 'content-type': type };

    for await (const chunk of request)
        chunks.push(chunk);
    if (notOffered.some((name) => name in request.headers))
        return response.writeHead(400).end();
    if (made.has(path)) {
        if (made.get(path) !== type.toLowerCase())
            return response.writeHead(409).end();
        return response.writeHead(200, headers).end();
    }
    made.set(path, type.toLowerCase());
    await create(path, type);
    const answer = await fill(path, type, Buffer.concat(chunks));
    if (!answer.ok)
        return response.writeHead(answer.status).end();
    headers.location = `http://${request.headers.host}${path}`;
    headers['stream-next-offset'] = answer.headers.get('stream-next-offset');
    response.writeHead(201, headers).end();
}

const server = http.createServer((request, response) => {
    const at = (request.url + '?').indexOf('?');
    const path = request.url.slice(0, at);

    if (request.method === 'PUT')
        put(request, response, path).catch((error) => response.writeHead(500).end(String(error)));
    else
        pass(request, response, path, request.url.slice(at));
});

server.listen(0, '127.0.0.1', () => console.log(server.address().port));
