// What a client of the official TypeScript SDK can put before a model, as one line of JSON.
// usage: node model_view_client.mjs MODULES VERSION URL
import { pathToFileURL } from 'node:url'

const [modules, version, url] = process.argv.slice(2)
const of = name => import(pathToFileURL(`${modules}/@modelcontextprotocol/sdk/dist/esm/${name}.js`).href)
const { Client } = await of('client/index')
const { StreamableHTTPClientTransport } = await of('client/streamableHttp')

const transport = new StreamableHTTPClientTransport(new URL(url))
// The SDK always proposes its newest version.
const send = transport.send.bind(transport)
transport.send = (message, options) => {
  if (message.method === 'initialize') message.params.protocolVersion = version
  return send(message, options)
}
const client = new Client({ name: 'tests', version: '1' })
await client.connect(transport)
const { tools } = await client.listTools()
const called = {}
for (const name of ['facts', 'closed_facts']) called[name] = await client.callTool({ name, arguments: {} })
console.log(JSON.stringify({
  version: transport.protocolVersion,
  instructions: client.getInstructions(),
  descriptions: Object.fromEntries(tools.map(tool => [tool.name, tool.description])),
  resource: (await client.readResource({ uri: 'runner://files' })).contents[0].text,
  prompt: (await client.getPrompt({ name: 'available_files' })).messages[0].content.text,
  called: Object.fromEntries(Object.entries(called).map(([name, { content, structuredContent, _meta }]) => [name, { content, structured: structuredContent, meta: _meta }])),
}))
await transport.terminateSession()
await client.close()
