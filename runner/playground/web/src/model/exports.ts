/** A call in other people's words. */
import { info } from "./info";
import { toJson, type Json } from "./json";
import type { Run } from "./runs";

export interface Export {
  id: string;
  title: string;
  make: (run: Run) => string;
}

export const EXPORTS: Export[] = [
  { id: "shell", title: "runner call", make: shell },
  { id: "curl", title: "curl", make: curl },
  { id: "python", title: "Python", make: python },
  { id: "mcp", title: "mcp.json", make: mcpJson },
  { id: "pytest", title: "pytest", make: pytest },
];

function address(): string {
  return `${location.origin}/mcp`;
}

function shell(run: Run): string {
  return `runner call FILE ${quoted(run.tool)} --args ${quoted(toJson(run.args))}`;
}

function curl(run: Run): string {
  const prefix = "io.modelcontextprotocol/";
  const meta = {
    [`${prefix}protocolVersion`]: "2026-07-28",
    [`${prefix}clientInfo`]: { name: "curl", version: "1" },
    [`${prefix}clientCapabilities`]: {},
  };
  const body = { jsonrpc: "2.0", id: 1, method: "tools/call", params: { name: run.tool, arguments: run.args, _meta: meta } };
  const lines = [
    `curl ${quoted(address())}`,
    "-H 'content-type: application/json' -H 'accept: application/json, text/event-stream'",
    "-H 'mcp-protocol-version: 2026-07-28' -H 'mcp-method: tools/call'",
    `-H ${quoted(`mcp-name: ${run.tool}`)}`,
    ...(info.value?.login ? ['-H "authorization: Bearer $TOKEN"'] : []),
    `--data ${quoted(toJson(body))}`,
  ];
  return lines.join(" \\\n  ");
}

function python(run: Run): string {
  return [
    "import asyncio",
    "",
    "from fastmcp import Client",
    "",
    "",
    "async def main() -> None:",
    `    async with Client(${pythonValue(address())}) as client:`,
    `        result = await client.call_tool(${pythonValue(run.tool)}, ${pythonValue(run.args as Json)})`,
    "        print(result.data)",
    "",
    "",
    "asyncio.run(main())",
  ].join("\n");
}

function mcpJson(): string {
  const server = { url: address(), ...(info.value?.login ? { headers: { Authorization: "Bearer ${TOKEN}" } } : {}) };
  return toJson({ mcpServers: { [info.value?.name ?? "tools"]: server } }, 2);
}

function pytest(run: Run): string {
  const failed = run.status !== "done";
  return [
    '"""Made from a call in the Playground. Change FILE to the path of the tool file."""',
    "",
    "import json",
    "import subprocess",
    "",
    "",
    `def test_${run.tool.replaceAll(/\W/g, "_")}_${failed ? "fails_as_it_did" : "answers"}() -> None:`,
    `    arguments = ${pythonValue(run.args as Json)}`,
    "",
    "    done = subprocess.run(",
    `        ["runner", "call", "FILE", ${pythonValue(run.tool)}, "--args", json.dumps(arguments), "--json"],`,
    "        capture_output=True,",
    "        text=True,",
    "        check=False,",
    "    )",
    "",
    failed ? "    assert done.returncode != 0, done.stdout" : "    assert done.returncode == 0, done.stderr",
    ...(failed ? [] : [`    assert json.loads(done.stdout)["results"] == ${pythonValue(resultsOf(run))}`]),
  ].join("\n");
}

function resultsOf(run: Run): Json {
  const meta = run.result?.["_meta"] as { [key: string]: Json } | undefined;
  const contract = (meta?.["toolcell/result"] ?? run.result?.["structuredContent"] ?? {}) as { [key: string]: Json };
  return contract["results"] ?? null;
}

/** A word for a POSIX shell. */
export function quoted(text: string): string {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}

/** A value as a Python literal. */
export function pythonValue(value: Json): string {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value === "string") return toJson(value).replaceAll("\u007f", "\\x7f");
  if (Array.isArray(value)) return `[${value.map(pythonValue).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value).map(([key, each]) => `${pythonValue(key)}: ${pythonValue(each)}`).join(", ")}}`;
  return toJson(value);
}
