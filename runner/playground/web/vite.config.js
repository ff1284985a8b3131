import { defineConfig } from "vite";

// Names carry a hash of the content, so that browsers may keep files for good and a rebuild shows every change.
export default defineConfig({
  base: "/play/assets/",
  // The widgets' sources take it from here too.
  resolve: { dedupe: ["markdown-it"] },
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    outDir: "../built",
    emptyOutDir: true,
    assetsDir: ".",
    target: "es2022",
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    sourcemap: false,
    reportCompressedSize: true,
  },
});
