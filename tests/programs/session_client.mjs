// A client of the official TypeScript SDK in a session: what it hears of a few calls, as one line of JSON.
// usage: node session_client.mjs MODULES VERSION (URL | COMMAND ARGUMENT...)
import { pathToFileURL } from 'node:url'

const [modules, version, target, ...rest] = process.argv.slice(2)
const of = name => import(pathToFileURL(`${modules}/@modelcontextprotocol/sdk/dist/esm/${name}.js`).href)
const { Client } = await of('client/index')
const { StreamableHTTPClientTransport } = await of('client/streamableHttp')
const { StdioClientTransport } = await of('client/stdio')
const { ElicitRequestSchema, LoggingMessageNotificationSchema } = await of('types')

const transport = target.startsWith('http')
  ? new StreamableHTTPClientTransport(new URL(target))
  : new StdioClientTransport({ command: target, args: rest, env: process.env, stderr: 'inherit' })
// The SDK always proposes its newest version.
const send = transport.send.bind(transport)
transport.send = (message, options) => {
  if (message.method === 'initialize') message.params.protocolVersion = version
  return send(message, options)
}

const client = new Client({ name: 'tests', version: '1' }, { capabilities: { elicitation: {} } })
const heard = { logged: [], steps: [], asked: [] }
client.setNotificationHandler(LoggingMessageNotificationSchema, ({ params }) => heard.logged.push(params.data.msg))
client.setRequestHandler(ElicitRequestSchema, ({ params }) => {
  heard.asked.push(params.message)
  return { action: 'accept', content: { value: 'yes' } }
})
await client.connect(transport)
heard.version = transport.protocolVersion ?? version

const call = async (name, args = {}, options = {}) => {
  const answer = await client.callTool({ name, arguments: args }, undefined, options)
  return answer.structuredContent ?? answer._meta['toolcell/result']
}
heard.tools = (await client.listTools()).tools.map(tool => tool.name)
heard.echo = await call('echo', { value: { text: 'ümläut', number: 1.5 } })
heard.together = await Promise.all(['a', 'b', 'c'].map(value => call('echo', { value })))
await call('steps', { count: 3 }, { onprogress: step => heard.steps.push(step.progress) })
heard.wonders = await call('wonders')
heard.fails = (await client.callTool({ name: 'fails', arguments: {} })).isError
const ending = new AbortController()
setTimeout(() => ending.abort('enough'), 300)
heard.cancelled = await client
  .callTool({ name: 'blocks', arguments: { mark: 'by-node' } }, undefined, { signal: ending.signal })
  .then(() => false, () => true)
heard.after = await call('echo', { value: 'after' })
console.log(JSON.stringify(heard))
await transport.terminateSession?.()
await client.close()
