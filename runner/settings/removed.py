"""Settings of earlier versions and their replacements. Data only; an entry stays for one minor version."""

from collections.abc import Mapping

__all__ = ["REMOVED"]

_OF_MODELS = (
    "playground_model", "playground_model_api", "playground_model_images", "playground_model_key",
    "playground_model_key_file", "playground_model_max_tokens", "playground_model_timeout_s",
    "playground_model_url",
)  # fmt: skip
_FIXED = (
    "audit_max_bytes", "auth.jwks_max_age_s", "auth.jwks_refresh_s", "idle_workers", "max_idle_workers",
    "max_message_bytes", "max_output_bytes", "max_queue", "max_queue_per_user", "max_requests_per_user",
    "max_sessions_per_user", "results_max_bytes", "tools.NAME.max_output_bytes", "worker_age_s",
    "worker_calls", "worker_idle_s",
)  # fmt: skip
REMOVED: Mapping[str, str] = {
    "audit_max_files": "move or delete full files of the audit log, oldest first (docs/operating.md)",
    "auth.login_scopes": "a login requests auth.required_scopes; with oidc also openid and email",
    "auth.client_secret": "write it into a file of mode 0600, and set auth.client_secret_file",
    **{
        f"auth.gateway_{name}": f"put it into a folder as {file}, and set auth.gateway_tls to that folder"
        for name, file in (("certificate", "tls.crt"), ("key", "tls.key"), ("ca", "ca.crt"))
    },
    **{
        f"auth.{name}_endpoint": "set auth.issuer to the provider, whose metadata names it (docs/serving.md)"
        for name in ("authorization", "token", "introspection")
    },
    "auth.jwks_uri": "for jwt set auth.keys to it; oauth_proxy reads it from the metadata of auth.issuer",
    "auth.public_key": "write it into a file of mode 0600, and set auth.keys to the file",
    "auth.resource_metadata": "give auth.authorization_servers; the server then describes itself",
    "auth.config_url": "set auth.issuer to the part before /.well-known/openid-configuration",
    "connect_timeout_s": "set load_timeout_s, which also holds for servers behind `runner proxy`",
    "deny_run": "set allow_run = [] (--deny-run still is an option)",
    "engine": "set redis_url; calls are executed by a fleet where it is set, and by this machine where not",
    "files_block": "set extras, which has the same values; for off, resources",
    "fleet": "give each fleet a database of its own in redis_url, such as redis://HOST:6379/1",
    "fleet_release": "hosts and nodes with the same tool files and version find each other without it",
    "generated_except": "have the tool return its files, or say that it ignores others (docs/guide.md)",
    "identity_case": "set identity_pattern, such as '[^\\p{Lu}]+' for no upper-case letters",
    "identity_letters": "set identity_pattern, such as '[ -~]+' for ASCII",
    "max_file_bytes": "set max_artifact_bytes, which also bounds what a tool writes",
    "inline_clients": 'set artifact_delivery = "inline"; a client can ask for it in its request, too',
    "max_answer_bytes": "set max_payload_bytes, which bounds answers and requests",
    "max_call_bytes": "set max_artifact_bytes, which also bounds the files of one call together",
    "max_request_bytes": "set max_payload_bytes, which bounds requests and answers",
    "max_upload_bytes": "set max_artifact_bytes, which also bounds uploads",
    "playground_frames_port": "route playground_frames_url to the port above `port`",
    "s3_access_key": "name a file of keys in AWS_SHARED_CREDENTIALS_FILE (docs/operating.md)",
    "s3_endpoint": "set AWS_ENDPOINT_URL_S3, or endpoint_url in ~/.aws/config (docs/operating.md)",
    "s3_path_style": "the bucket's name stands in the path on servers other than AWS",
    "s3_region": "set AWS_DEFAULT_REGION, or region in ~/.aws/config",
    "s3_secret_key": "name a file of keys in AWS_SHARED_CREDENTIALS_FILE (docs/operating.md)",
    "shrink_pictures": "install toolcell[pictures], with which pictures are made to fit a message",
    "spans": "set OTEL_EXPORTER_OTLP_ENDPOINT; spans go to the collector that it names",
    "show_username": "clients never see the parameter; what they send there is overwritten",
    "store_unavailable": "a file waits on this machine; in a fleet its call says so (docs/operating.md)",
    "max_connections": "limit connections in the reverse proxy (deploy/nginx.conf) or with `ulimit -n`",
    "max_connections_per_address": "limit connections in the reverse proxy (limit_conn in deploy/nginx.conf)",
    "call_limits.NAME.cpu_s_per_hour": "set calls_per_minute; each process of a call has cpu_s",
    "call_limits.NAME.memory_mb": "set max_calls; each call has call_memory_mb",
    "call_limits.NAME.stored_mb_per_day": "set max_user_bytes, or max_artifact_bytes for a single call",
    "playground_connect": "put `runner proxy` in front of the server, and open the proxy's Playground",
    "tools.NAME.call_memory_mb": "set memory_mb for this tool, or call_memory_mb for all tools",
    "tools.NAME.max_answer_bytes": "set max_payload_bytes for all tools",
    "tools.NAME.calls_per_minute": 'set it under [call_limits.NAME] with tools = ["TOOL"], per = "user"',
    "tools.NAME.deny_run": "set allow_run = [] for this tool",
    "tools.NAME.generated": "set generated for all tools, or in the tool's own meta (docs/guide.md)",
    "tools.NAME.max_file_bytes": "set max_artifact_bytes for all tools",
    **{
        f"tools.NAME.{name}": f"set {name} for all tools"
        for name in ("max_home_files", "max_payload_bytes", "open_files")
    },
    **dict.fromkeys(_FIXED, "its value is fixed; leave it out"),
    **dict.fromkeys(_OF_MODELS, "the Playground has no chat; connect a client that has a model to /mcp"),
}
"""Settings of earlier versions and their replacements."""
