/** The Playground: starts, enters, and shows the view that the address names. */
import { render } from "preact";
import { App } from "./app";
import { begin } from "./model/begin";
import { enter } from "./model/info";
import { useTheme } from "./model/theme";
import { speak } from "./texts/language";

useTheme();
const root = document.getElementById("app");

// Nothing is drawn in one language and then in another: another than English is loaded first.
await speak();
if (root !== null) render(<App />, root);
void enter().then(begin);
