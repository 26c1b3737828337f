// The official TypeScript SDK against the program: list, call every tool, 64 calls at once, cancel, close.
//
// usage: node typescript.mjs PROGRAM [ARGUMENT…]   (the arguments start the server)
//        node typescript.mjs URL TOKEN_FILE        (it is running and reached over HTTP)
//
// Runs whichever major is installed where it is started: @modelcontextprotocol/sdk 1.x shakes hands;
// @modelcontextprotocol/client 2.x is run both ways. Each validates structured output by itself.

import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { pathToFileURL } from 'node:url';

const [program, ...args] = process.argv.slice(2);
const resolve = createRequire(join(process.cwd(), 'package.json')).resolve;

const SAMPLES = [
  ['search', { query: 'backups' }],
  ['search', { query: 'nothing_of_this_kind' }],
  ['bulk_search', { queries: [{ query: 'port' }, { query: 'x', k: 0 }] }],
  ['bulk_search', { queries: [] }],
  ['ask', { question: 'How are backups made?', extractive: true }],
  ['fetch', { path: 'notes.txt' }],
  ['schema', {}],
  ['doctor', {}],
  ['ingest_file', { path: 'notes.txt' }],
  ['ingest_stdin', { text: '# Plan\n\nShip on Friday.', title: 'Plan' }],
];

async function load() {
  const from = (name) => import(pathToFileURL(resolve(name)).href);
  try {
    const { Client } = await from('@modelcontextprotocol/sdk/client/index.js');
    const { StdioClientTransport } = await from('@modelcontextprotocol/sdk/client/stdio.js');
    const { StreamableHTTPClientTransport } = await from('@modelcontextprotocol/sdk/client/streamableHttp.js');
    const sdk = released('@modelcontextprotocol/sdk', 'sdk');
    return { Client, StdioClientTransport, StreamableHTTPClientTransport, release: sdk, modes: [undefined] };
  } catch (error) {
    if (!['MODULE_NOT_FOUND', 'ERR_PACKAGE_PATH_NOT_EXPORTED'].includes(error.code)) throw error;
  }
  const { Client, StreamableHTTPClientTransport } = await from('@modelcontextprotocol/client');
  const { StdioClientTransport } = await from('@modelcontextprotocol/client/stdio');
  const release = released('@modelcontextprotocol/client', 'client');
  return { Client, StdioClientTransport, StreamableHTTPClientTransport, release, modes: ['legacy', 'auto'] };
}

function released(name, folder) {
  for (let place = dirname(resolve(`${name}${folder === 'sdk' ? '/client/index.js' : ''}`)); place !== '/'; place = dirname(place)) {
    try {
      const { name: found, version } = JSON.parse(readFileSync(join(place, 'package.json'), 'utf8'));
      if (found === name) return `${name} ${version}`;
    } catch {
      // Not every folder on the way up has one.
    }
  }
  return name;
}

async function exercise(client) {
  const { tools } = await client.listTools();
  const names = tools.map((tool) => tool.name);
  assert.deepEqual(names.slice(0, 2), ['search', 'bulk_search']);
  assert.deepEqual(names.filter((name) => !SAMPLES.some(([sample]) => sample === name)), []);
  for (const [name, given] of SAMPLES) {
    if (!names.includes(name)) continue;
    const result = await client.callTool({ name, arguments: given });
    assert.ok(!result.isError, `${name}: ${JSON.stringify(result)}`);
    assert.deepEqual(JSON.parse(result.content[0].text), result.structuredContent, name);
  }

  const failed = await client.callTool({ name: 'search', arguments: { query: 'x', k: 0 } });
  assert.ok(failed.isError && failed.structuredContent === undefined);
  assert.equal(JSON.parse(failed.content[0].text).code, 'invalid_input');

  const found = await client.callTool({ name: 'search', arguments: { query: 'backups' } });
  const uri = `kebab://doc/${found.structuredContent.hits[0].doc_id}`;
  const read = await client.readResource({ uri });
  assert.ok(read.contents[0].text.startsWith('# Backups'));
  assert.equal((await client.listResourceTemplates()).resourceTemplates.length, 2);

  // Over HTTP each takes a connection, of which a server has 64 for all its clients.
  const atOnce = program.startsWith('http://') ? 40 : 64;
  const calls = Array.from({ length: atOnce }, (_, number) =>
    client.callTool({ name: 'search', arguments: { query: 'port', k: 1 + (number % 10) } }),
  );
  for (const result of await Promise.all(calls)) {
    assert.equal(result.structuredContent.hits[0].doc_path, 'notes.txt');
  }

  const queries = Array.from({ length: 100 }, (_, number) => ({ query: `port store copy ${number}` }));
  const abort = new AbortController();
  const many = { name: 'bulk_search', arguments: { queries } };
  const options = { signal: abort.signal };
  const doomed = client.callTool.length > 2 || client.callTool.toString().includes('resultSchema')
    ? client.callTool(many, undefined, options)
    : client.callTool(many, options);
  abort.abort('not wanted any more');
  await assert.rejects(doomed);
  assert.ok(!(await client.callTool({ name: 'search', arguments: { query: 'port' } })).isError);
  return names.length;
}

const { Client, StdioClientTransport, StreamableHTTPClientTransport, release, modes } = await load();

function transport() {
  if (!program.startsWith('http://')) return new StdioClientTransport({ command: program, args, stderr: 'inherit' });
  const headers = { Authorization: `Bearer ${readFileSync(args[0], 'utf8')}` };
  return new StreamableHTTPClientTransport(new URL(program), { requestInit: { headers } });
}

for (const mode of modes) {
  const options = mode ? { versionNegotiation: { mode } } : {};
  const client = new Client({ name: 'kebab-lite-test', version: '1.0.0' }, options);
  client.onerror = (error) => {
    throw error;
  };
  await client.connect(transport());
  const count = await exercise(client);
  const revision = client.getNegotiatedProtocolVersion?.() ?? '';
  const started = performance.now();
  await client.close();
  const ended = performance.now() - started;
  assert.ok(ended < 2000, `closing took ${ended} ms`);
  console.log(`${release} ${mode ?? ''} ${revision}: ${count} tools, closed in ${ended.toFixed(0)} ms`);
}
