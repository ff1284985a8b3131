// Clients of the two TypeScript SDKs, each given the replies of a server that was connected to elsewhere.
// usage: node reply_clients.mjs MODULES. One line of JSON in: {key, replies: {METHOD: RESULT}} makes the clients of a
// server, {key, calls: [[TOOL, RESULT]]} are replies to calls of it. One line out: for each call its problems, by client.
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const of = name => import(pathToFileURL(`${process.argv[2]}/@modelcontextprotocol/${name}`).href);
const { Client: First } = await of("sdk/dist/esm/client/index.js");
const { Client: Second } = await of("client/dist/index.mjs");

const servers = new Map();

class Replay {
  constructor(replies) { this.replies = replies; }
  async start() {}
  async close() {}
  async send({ id, method }) {
    if (id === undefined) return;
    const result = this.replies[method];
    const answer = result === undefined ? { error: { code: -32601, message: "Method not found" } } : { result };
    queueMicrotask(() => this.onmessage({ jsonrpc: "2.0", id, ...answer }));
  }
}

async function connected(client, replies) {
  const transport = new Replay({ ...replies });
  await client.connect(transport);
  await client.listTools();
  return { client, transport };
}

async function made({ key, replies }) {
  const about = { name: "replay", version: "1" };
  const clients = {};
  if (replies.initialize) clients["sdk 1"] = await connected(new First(about), replies);
  const era = replies.initialize ? {} : { versionNegotiation: { mode: { pin: "2026-07-28" } } };
  clients["client 2"] = await connected(new Second(about, era), replies);
  servers.set(key, clients);
  return {};
}

async function problems({ key, calls }) {
  const found = calls.map(() => ({}));
  for (const [name, { client, transport }] of Object.entries(servers.get(key))) {
    for (const [index, [tool, result]] of calls.entries()) {
      transport.replies["tools/call"] = result;
      // An error outside of a request is of a reply that is not even taken for one.
      const failed = new Promise((_, reject) => { client.onerror = reject; });
      try { await Promise.race([client.callTool({ name: tool, arguments: {} }), failed]); } catch (error) { found[index][name] = String(error); }
    }
  }
  return found;
}

for await (const line of createInterface({ input: process.stdin })) {
  const asked = JSON.parse(line);
  let answer;
  try { answer = await (asked.replies ? made(asked) : problems(asked)); }
  catch (error) { answer = { setup: String(error) }; }
  process.stdout.write(JSON.stringify(answer) + "\n");
}
