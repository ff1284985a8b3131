/** The Playground: starts, enters, and shows the view that the address names. */
import { render } from "preact";
import { App } from "./app";
import { begin } from "./model/begin";
import { enter } from "./model/info";
import "./model/theme";

const root = document.getElementById("app");

if (root !== null) render(<App />, root);
void enter().then(begin);
