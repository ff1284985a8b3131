/**
 * What runs in a widget's frame before the widget, and keeps it alone there: no frames of its own.
 *
 * A policy lets every document make frames of text it brings (`srcdoc`, `javascript:`). Such a frame has fresh
 * constructors, WebRTC among them, and WebRTC is under no policy at all. So a frame is taken out before anything in
 * it has begun. What parses shadow roots that no script can look into is taken away.
 */

/** Runs as text in another document: it may use nothing from outside itself, and nothing the widget could change. */
export function keepAlone(): void {
  const { apply } = Reflect;
  const attach = Element.prototype.attachShadow;
  const remove = Element.prototype.remove;
  const observe = MutationObserver.prototype.observe;
  const guard = (root: Node, find: (selectors: string) => Element | null): void => {
    const sweep = (): void => {
      for (let frame; (frame = apply(find, root, ["iframe,frame,object,embed,fencedframe"])); ) apply(remove, frame, []);
    };
    apply(observe, new MutationObserver(sweep), [root, { childList: true, subtree: true }]);
  };
  guard(document, Document.prototype.querySelector);
  const { querySelector } = ShadowRoot.prototype;
  Element.prototype.attachShadow = function attachShadow(init: ShadowRootInit): ShadowRoot {
    const root: ShadowRoot = apply(attach, this, [init]);
    guard(root, querySelector);
    return root;
  };
  const takeAway = (holder: object, tells: (name: string) => boolean): void => {
    for (const name of Object.getOwnPropertyNames(holder)) if (tells(name)) Reflect.deleteProperty(holder, name);
  };
  takeAway(window, (name) => ["RTCPeerConnection", "webkitRTCPeerConnection", "RTCDataChannel", "WebTransport"].includes(name));
  takeAway(Document.prototype, (name) => ["open", "write", "writeln"].includes(name));
  for (const holder of [Document, Document.prototype, Element.prototype, ShadowRoot.prototype]) takeAway(holder, (name) => name.includes("Unsafe"));
}

/** HTML in which no element begins a shadow root by itself. */
export function withoutShadows(html: string): string {
  return html.replaceAll(/shadowrootmode/gi, "data-shadowrootmode");
}
