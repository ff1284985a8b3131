#!/usr/bin/env node
// An MCP server that counts its calls in a file beside itself.
const fs = require("fs");
const lines = require("readline").createInterface({ input: process.stdin });
const info = { name: "tiny", version: "1" };
const answers = {
  initialize: () => ({ protocolVersion: "2025-06-18", capabilities: { tools: {} }, serverInfo: info }),
  "tools/list": () => ({ tools: [{ name: "count", inputSchema: { type: "object" } }] }),
  "tools/call": () => {
    fs.appendFileSync(__dirname + "/calls", ".");
    const count = fs.readFileSync(__dirname + "/calls", "utf8").length;
    return { content: [{ type: "text", text: JSON.stringify([__dirname, count]) }] };
  },
};
lines.on("line", (line) => {
  const { id, method } = JSON.parse(line);
  if (id === undefined) return;
  const answer = answers[method];
  const outcome = answer ? { result: answer() } : { error: { code: -32601, message: "no" } };
  console.log(JSON.stringify({ jsonrpc: "2.0", id, ...outcome }));
});
