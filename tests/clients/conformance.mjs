// The official conformance suite against a running server over HTTP, for each revision it has requirements of.
//
// usage: node conformance.mjs URL TOKEN_FILE   (where @modelcontextprotocol/conformance is installed)
//
// The suite cannot send a token: a proxy in this process adds it and passes everything else on as it comes. Most
// scenarios ask a server of the suite's own making, with tools, prompts and resources that no other has. They are listed
// here with the checks that cannot be met and why; any other failure is one of the program, and so is a listed check
// that is met after all.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, readdirSync, rmSync } from 'node:fs';
import { createServer, request } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const [url, tokenFile] = process.argv.slice(2);
const HANDSHAKE = '2025-11-25';
const MODERN = '2026-07-28';

// What the server says where the suite's own tool, prompt or resource is missing.
const TOOL = /no tool is called "test_|^Not testable: server (does not list|exposes no tool)|^Prerequisite failed|^Tool 'json_schema_2020_12_tool' not found/;
const RESOURCE = /no resource test:/;
// What a server need not have: the capability is not advertised.
const METHOD = /no such method: (prompts\/(list|get)|completion\/complete|logging\/setLevel|resources\/subscribe)/;

// Scenario, check, why it cannot be met, and the revisions that have it.
const BOTH = [HANDSHAKE, MODERN];
const UNMET = [
  ['tools-call-simple-text', 'tools-call-simple-text', TOOL, BOTH],
  ['tools-call-image', 'tools-call-image', TOOL, BOTH],
  ['tools-call-audio', 'tools-call-audio', TOOL, BOTH],
  ['tools-call-embedded-resource', 'tools-call-embedded-resource', TOOL, BOTH],
  ['tools-call-mixed-content', 'tools-call-mixed-content', TOOL, BOTH],
  ['tools-call-error', 'tools-call-error', TOOL, BOTH],
  ['tools-call-with-progress', 'tools-call-with-progress', TOOL, BOTH],
  ['tools-call-sampling', 'tools-call-sampling', TOOL, [HANDSHAKE]],
  ['tools-call-elicitation', 'tools-call-elicitation', TOOL, [HANDSHAKE]],
  ['elicitation-sep1034-defaults', 'elicitation-sep1034-general', TOOL, [HANDSHAKE]],
  ['elicitation-sep1330-enums', 'elicitation-sep1330-general', TOOL, [HANDSHAKE]],
  ['json-schema-2020-12', 'json-schema-2020-12-tool-found', TOOL, BOTH],
  ['resources-read-text', 'resources-read-text', RESOURCE, BOTH],
  ['resources-read-binary', 'resources-read-binary', RESOURCE, BOTH],
  ['resources-templates-read', 'resources-templates-read', RESOURCE, BOTH],
  ['resources-subscribe', 'resources-subscribe', METHOD, [HANDSHAKE]],
  ['resources-unsubscribe', 'resources-unsubscribe', METHOD, [HANDSHAKE]],
  ['tools-call-with-logging', 'tools-call-with-logging', METHOD, [HANDSHAKE]],
  ['logging-set-level', 'logging-set-level', METHOD, [HANDSHAKE]],
  ['completion-complete', 'completion-complete', METHOD, BOTH],
  ['prompts-list', 'prompts-list', METHOD, BOTH],
  ['prompts-get-simple', 'prompts-get-simple', METHOD, BOTH],
  ['prompts-get-with-args', 'prompts-get-with-args', METHOD, BOTH],
  ['prompts-get-embedded-resource', 'prompts-get-embedded-resource', METHOD, BOTH],
  ['prompts-get-with-image', 'prompts-get-with-image', METHOD, BOTH],
  ['caching', 'sep-2549-prompts-list-caching-hints', METHOD, [MODERN]],
  ['server-stateless', 'sep-2575-server-rejects-undeclared-capability', TOOL, [MODERN]],
  ['server-stateless', 'sep-2575-missing-capability-http-400', TOOL, [MODERN]],
  ['server-stateless', 'sep-2575-http-server-no-independent-requests-on-stream', TOOL, [MODERN]],
  ['server-stateless', 'sep-2575-server-no-log-without-loglevel', TOOL, [MODERN]],
  ['http-custom-header-server-validation', 'sep-2243-server-no-xmcp-tool', TOOL, [MODERN]],
  ['http-custom-header-server-validation', 'sep-2243-server-decode-base64', TOOL, [MODERN]],
  ['http-custom-header-server-validation', 'sep-2243-server-validate-param-match', TOOL, [MODERN]],
  ['http-custom-header-server-validation', 'sep-2243-server-reject-invalid-param-chars', TOOL, [MODERN]],
  ['http-custom-header-server-validation', 'sep-2243-server-reject-param-mismatch', TOOL, [MODERN]],
  ['input-required-result-basic-elicitation', 'sep-2322-elicitation-incomplete', TOOL, [MODERN]],
  ['input-required-result-basic-list-roots', 'sep-2322-list-roots-incomplete', TOOL, [MODERN]],
  ['input-required-result-basic-sampling', 'sep-2322-sampling-incomplete', TOOL, [MODERN]],
  ['input-required-result-capability-check', 'sep-2322-respect-client-capabilities', TOOL, [MODERN]],
  ['input-required-result-multi-round', 'sep-2322-multi-round-r1', /^Expected InputRequiredResult/, [MODERN]],
  ['input-required-result-multiple-input-requests', 'sep-2322-multiple-inputs-incomplete', TOOL, [MODERN]],
  ['input-required-result-non-tool-request', 'sep-2322-non-tool-incomplete', METHOD, [MODERN]],
  ['input-required-result-request-state', 'sep-2322-request-state-incomplete', TOOL, [MODERN]],
  ['input-required-result-result-type', 'sep-2322-result-type-included', TOOL, [MODERN]],
  ['input-required-result-tampered-state', 'sep-2322-reject-tampered-state', TOOL, [MODERN]],
];

// An extension of the protocol that is not offered, and that no revision requires.
const isExtension = (scenario) => scenario.startsWith('tasks-');

// What has to have been run and met in whole, so that a suite that runs nothing does not pass.
const MET = {
  [HANDSHAKE]: ['server-initialize', 'server-session-lifecycle', 'ping', 'tools-list', 'resources-list',
    'server-sse-multiple-streams', 'dns-rebinding-protection'],
  [MODERN]: ['tools-list', 'resources-list', 'sep-2164-resource-not-found', 'server-sse-multiple-streams',
    'dns-rebinding-protection', 'http-header-validation', 'input-required-result-unsupported-methods',
    'input-required-result-validate-input'],
};

function proxy(target, token) {
  return createServer((asked, answer) => {
    const headers = [...asked.rawHeaders, 'Authorization', `Bearer ${token}`];
    const { hostname: host, port } = target;
    const onward = request({ host, port, path: asked.url, method: asked.method, headers, agent: false }, (got) => {
      answer.writeHead(got.statusCode, got.rawHeaders);
      got.pipe(answer);
    });
    onward.on('error', () => answer.destroy());
    answer.on('close', () => onward.destroy());
    asked.pipe(onward);
  });
}

// Scenario → its checks, as the suite leaves them in a folder for each.
async function checks(port, revision) {
  const folder = mkdtempSync(join(tmpdir(), 'conformance-'));
  try {
    const suite = join(process.cwd(), 'node_modules/@modelcontextprotocol/conformance/dist/index.js');
    const where = ['--url', `http://localhost:${port}/mcp`, '--requirements', revision, '-o', folder];
    // It fails for what it cannot find here; its checks are what counts.
    const child = spawn(process.execPath, [suite, 'server', ...where], { stdio: 'ignore' });
    await once(child, 'exit');
    const name = (entry) => /^server-(.*)-\d{4}-\d\d-\d\dT[-\dZ]+$/.exec(entry)[1];
    const read = (entry) => JSON.parse(readFileSync(join(folder, entry, 'checks.json'), 'utf8'));
    return new Map(readdirSync(folder).map((entry) => [name(entry), read(entry)]));
  } finally {
    rmSync(folder, { recursive: true });
  }
}

const server = proxy(new URL(url), readFileSync(tokenFile, 'utf8'));
server.listen(0, 'localhost');
await once(server, 'listening');

for (const revision of BOTH) {
  const found = await checks(server.address().port, revision);
  const wrong = [];
  const unmet = new Set();
  let met = 0;
  for (const [scenario, list] of found) {
    if (isExtension(scenario)) continue;
    for (const { id, status, errorMessage } of list) {
      met += status === 'SUCCESS';
      if (status !== 'FAILURE') continue;
      const known = UNMET.find((row) => row[0] === scenario && row[1] === id && row[3].includes(revision));
      if (known?.[2].test((errorMessage ?? '').replace(/^Failed: /, ''))) unmet.add(known);
      else wrong.push(`${scenario}: ${id}: ${errorMessage}`);
    }
  }
  const stale = UNMET.filter((row) => row[3].includes(revision) && !unmet.has(row)).map((row) => row[1]);
  assert.deepEqual({ wrong, stale }, { wrong: [], stale: [] }, revision);
  for (const scenario of MET[revision]) {
    assert.ok(found.get(scenario)?.some(({ status }) => status === 'SUCCESS'), `${revision}: ${scenario} was not run`);
  }
  console.log(`conformance ${revision}: ${met} checks met, ${unmet.size} need what only the suite's own server has`);
}
server.close();
