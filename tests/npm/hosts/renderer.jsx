// The smallest host that shows an app with @mcp-ui/client: what to show comes from the page that opens this one.
import { AppRenderer } from "@mcp-ui/client";
import { createRoot } from "react-dom/client";

window.show = ({ tool, uri, read, input, result, theme, proxy }) =>
  createRoot(document.getElementById("here")).render(
    <AppRenderer
      toolName={tool}
      toolResourceUri={uri}
      onReadResource={async () => read}
      toolInput={input}
      toolResult={result}
      hostContext={{ theme, displayMode: "inline" }}
      sandbox={{ url: new URL(proxy) }}
      onOpenLink={async () => ({})}
      onMessage={async () => ({})}
      onError={(error) => (window.failed = String(error))}
    />,
  );
