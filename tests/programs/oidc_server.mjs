// An OpenID provider: the package oidc-provider, over loopback. Anybody logs in by a name, as it is meant for tests.
// usage: node oidc_server.mjs MODULES PORT OPTIONS, the latter JSON: redirect, seconds, refreshes.
import { pathToFileURL } from 'node:url'

const [modules, port, said] = process.argv.slice(2)
const options = JSON.parse(said)
const { default: Provider } = await import(pathToFileURL(`${modules}/oidc-provider/lib/index.js`).href)
const issuer = `http://127.0.0.1:${port}`

const provider = new Provider(issuer, {
  clients: [{ client_id: 'runner', client_secret: 'a-secret-of-the-runner', redirect_uris: [options.redirect],
    grant_types: ['authorization_code', 'refresh_token'] }],
  scopes: ['openid', 'email', 'offline_access', 'call', 'change'],
  claims: { openid: ['sub'], email: ['email', 'email_verified'] },
  conformIdTokenClaims: false,
  findAccount: (_, id) => ({
    accountId: id,
    claims: () => ({ sub: id, email: `${id}@example.com`, email_verified: id !== 'eve' }),
  }),
  pkce: { required: () => true },
  ...(options.refreshes ? { issueRefreshToken: async () => true } : {}),
  features: {
    devInteractions: { enabled: true },
    introspection: { enabled: true },
    registration: { enabled: true },
    resourceIndicators: {
      enabled: true,
      useGrantedResource: () => true,
      getResourceServerInfo: (_, resource) => ({
        scope: 'openid call change',
        audience: resource,
        accessTokenFormat: 'jwt',
        accessTokenTTL: options.seconds ?? 3600,
        jwt: { sign: { alg: 'RS256' } },
      }),
    },
  },
  ttl: { AccessToken: options.seconds ?? 3600, IdToken: options.seconds ?? 3600 },
})
provider.listen(Number(port), '127.0.0.1', () => console.log('listening'))
