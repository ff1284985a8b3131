// Runs one command in sandbox-runtime for each line of JSON it reads; oneshot.py starts it.
// It reads a list, the command, and writes a list: its status, what it printed, and what it complained of.
// Its arguments: where the library's entry is, and the settings of the sandbox.

import { spawn } from "node:child_process";
import { createInterface } from "node:readline";

const [entry, settings] = process.argv.slice(2);
const { SandboxManager } = await import(entry);

const quoted = (word) => `'${word.replaceAll("'", `'\\''`)}'`;

const run = (command) =>
  new Promise((resolve) => {
    const child = spawn(command, { shell: true, stdio: ["ignore", "pipe", "pipe"], timeout: 60_000 });
    let output = "";
    let complaint = "";
    child.stdout.on("data", (data) => (output += data));
    child.stderr.on("data", (data) => (complaint += data));
    child.on("close", (status) => resolve([status ?? 1, output, complaint]));
  });

await SandboxManager.initialize(JSON.parse(settings));
for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line).map(quoted).join(" ");
  const done = await run(await SandboxManager.wrapWithSandbox(command));
  process.stdout.write(`${JSON.stringify(done)}\n`);
}
await SandboxManager.reset();
process.exit(0);
