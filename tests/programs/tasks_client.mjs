// The official clients of tasks in TypeScript: what they make of a few calls, as one line of JSON.
// usage: node tasks_client.mjs MODULES URL
import { pathToFileURL } from 'node:url'

const [modules, url] = process.argv.slice(2)
const of = name => import(pathToFileURL(`${modules}/@modelcontextprotocol/${name}`).href)
const { Client, StreamableHTTPClientTransport } = await of('client/dist/index.mjs')
const { createTaskSessionFromClient, resultFromTaskOutcome } = await of('ext-tasks/dist/client/index.js')

const clientInfo = { name: 'tests', version: '1' }
const clientCapabilities = { elicitation: { form: {} }, extensions: { 'io.modelcontextprotocol/tasks': {} } }
const protocolVersion = '2026-07-28'
const client = new Client(clientInfo, {
  capabilities: clientCapabilities,
  versionNegotiation: { mode: { pin: protocolVersion } },
})
await client.connect(new StreamableHTTPClientTransport(new URL(url)))

// Results that are tasks are no results to the SDK itself, so their messages go past its parser.
let number = 1000
const rawDispatch = async request => {
  const { taskId, name } = request.params
  const answer = await fetch(url, {
    method: 'POST',
    headers: {
      'content-type': 'application/json',
      accept: 'application/json, text/event-stream',
      'mcp-protocol-version': protocolVersion,
      'mcp-method': request.method,
      'mcp-name': taskId ?? name,
    },
    body: JSON.stringify({ ...request, jsonrpc: '2.0', id: ++number }),
  })
  const text = await answer.text()
  const told = JSON.parse(text.startsWith('{') ? text : text.trim().split('\n').filter(l => l.startsWith('data: ')).pop().slice(6))
  return told.error ? { kind: 'error', error: told.error } : { kind: 'result', result: told.result }
}
const session = createTaskSessionFromClient(client, {
  endpointId: 'tests',
  rawDispatch,
  v2RequestFraming: { protocolVersion, clientInfo, clientCapabilities },
  onInputRequest: async request => ({ action: 'accept', content: { dish: `soup, asked: ${request.params.message}` } }),
})
const settled = async (tool, args) => {
  const execution = await session.callTool(tool, args)
  const { outcome } = await execution.settle()
  return { outcome: outcome.status, task: outcome.task?.status, said: outcome.task?.statusMessage, text: textOf(outcome) }
}
const textOf = outcome => {
  try {
    return resultFromTaskOutcome(outcome).content[0].text
  } catch (error) {
    return `${error.name}: ${error.message}`
  }
}
const told = {
  slow: await settled('slow', { seconds: 0.2 }),
  fails: await settled('fails', {}),
  asks: await settled('asks', {}),
  plain: await settled('plain', {}),
}
const execution = await session.callTool('slow', { seconds: 500 })
await execution.cancel()
const { outcome } = await execution.settle()
told.cancelled = outcome.status
console.log(JSON.stringify(told))
await session.close()
await client.close()
process.exit(0)
