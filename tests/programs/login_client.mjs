// A client of the official TypeScript SDK that has to log in: from 401 to a call, as one line of JSON.
// usage: node login_client.mjs MODULES URL CALLBACK; it prints where its user logs in, and reads the code.
import { createInterface } from 'node:readline'
import { pathToFileURL } from 'node:url'

const [modules, url, callback] = process.argv.slice(2)
const of = name => import(pathToFileURL(`${modules}/@modelcontextprotocol/sdk/dist/esm/${name}.js`).href)
const { Client } = await of('client/index')
const { StreamableHTTPClientTransport } = await of('client/streamableHttp')
const { UnauthorizedError } = await of('client/auth')

const kept = {}
const authProvider = {
  redirectUrl: callback,
  clientMetadata: {
    client_name: 'tests',
    redirect_uris: [callback],
    grant_types: ['authorization_code', 'refresh_token'],
    response_types: ['code'],
    token_endpoint_auth_method: 'none',
  },
  clientInformation: () => kept.client,
  saveClientInformation: client => { kept.client = client },
  tokens: () => kept.tokens,
  saveTokens: tokens => { kept.tokens = tokens },
  saveCodeVerifier: verifier => { kept.verifier = verifier },
  codeVerifier: () => kept.verifier,
  redirectToAuthorization: address => console.log(address.href),
}
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]()
const connect = async () => {
  const client = new Client({ name: 'tests', version: '1' }, { capabilities: {} })
  const transport = new StreamableHTTPClientTransport(new URL(url), { authProvider })
  try {
    await client.connect(transport)
    return client
  } catch (error) {
    if (!(error instanceof UnauthorizedError) || kept.tokens) throw error
    await transport.finishAuth((await lines.next()).value)
    return connect()
  }
}
const client = await connect()
const tools = (await client.listTools()).tools.map(tool => tool.name)
const { content } = await client.callTool({ name: 'whose', arguments: {} })
console.log(JSON.stringify({ tools, content }))
await client.close()
process.exit(0)
