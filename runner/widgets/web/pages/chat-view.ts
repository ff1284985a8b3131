/**
 * A conversation: the message it starts with, and what was said. The host's own composer stays the place to write.
 * Source: requirement S3-118.
 */

import { own } from "../bridge/read.ts";
import { asRecord, dicts, field, listOrNone, words } from "../lib/data.ts";
import { h, said, spoken } from "../lib/dom.ts";
import type { Child } from "../lib/dom.ts";
import { icon } from "../lib/icons.ts";
import { mount } from "../lib/page.ts";
import type { Scene } from "../lib/page.ts";
import { button, modeButton } from "../lib/parts.ts";

interface Message {
  mine: boolean;
  text: string;
  time: string;
}

const INLINE_MESSAGES = 6;
const MAX_MESSAGES = 200;
const STARTERS = ["What can you help me with here?", "Summarise our conversation so far."];

mount({
  empty: { icon: "chat", title: "No conversation yet", text: "Write a message below to begin." },
  draw(output, scene) {
    const record = asRecord(output, "messages");
    const seed = words(own(record, "seedMessage"));
    const sent = sentBefore(scene);
    const messages = dicts(listOrNone(record, ["messages"])).slice(-MAX_MESSAGES).map(message).filter(({ text }) => text !== "");
    const all = [...(seed === "" ? [] : [{ mine: true, text: seed, time: "" }]), ...messages];
    if (all.length === 0) return welcome(scene, sent);
    const shown = scene.inline ? all.slice(-INLINE_MESSAGES) : all;
    const hidden = all.length - shown.length;
    return [
      h("header", { class: "head" }, h("div", { class: "head-text" }, h("h1", { class: "title" }, "Conversation")), modeButton(scene)),
      hidden > 0 ? h("p", { class: "muted small center" }, `${scene.format.count(hidden, "earlier message", "earlier messages")} not shown`) : null,
      h("ol", { class: "messages" }, shown.map((one) => bubble(scene, one))),
      seed === "" ? null : actions(scene, seed, sent),
    ];
  },
});

function welcome(scene: Scene, sent: readonly string[]): Child {
  return [
    h("section", { class: "empty" }, icon("chat", "empty-icon"), h("h1", { class: "empty-title" }, "Start a conversation"), h("p", { class: "muted" }, "Write below, or begin with one of these.")),
    h("div", { class: "actions center" }, STARTERS.map((prompt, place) => sendButton(scene, prompt, prompt, sent, place === 0))),
  ];
}

function actions(scene: Scene, seed: string, sent: readonly string[]): Child {
  const follow = "Answer the message shown in the chat view.";
  return h("div", { class: "actions" }, sendButton(scene, seed, "Send this message", sent, true), sendButton(scene, follow, "Ask for an answer", sent, false));
}

function sendButton(scene: Scene, prompt: string, label: string, sent: readonly string[], primary: boolean): HTMLElement {
  const done = sent.includes(prompt);
  const send = async (): Promise<void> => {
    if (!(await scene.attempt(scene.runtime.sendFollowUpMessage({ prompt }), "Sent to the conversation"))) return;
    const state = { modelContent: null, privateContent: { sent: [...sent, prompt].slice(-20).map((one) => one.slice(0, 500)) } };
    await scene.runtime.setWidgetState(state).catch(() => undefined);
  };
  const content = [primary && !done ? icon("send") : null, h("span", { dir: "auto" }, done ? `Sent: ${label}` : label)];
  return button(content, primary ? "primary" : "secondary", () => void send(), { key: `send:${prompt}`, disabled: done });
}

function sentBefore(scene: Scene): readonly string[] {
  const sent = own(own(scene.runtime.useWidgetState(), "privateContent"), "sent");
  return Array.isArray(sent) ? sent.filter((one): one is string => typeof one === "string") : [];
}

function message(record: Record<string, unknown>): Message {
  const role = field(record, ["role", "author"]);
  return { mine: role === "user", text: field(record, ["text", "content", "message"]), time: field(record, ["time", "timestamp"], 60) };
}

function bubble(scene: Scene, { mine, text, time }: Message): HTMLElement {
  const who = spoken(mine ? "You: " : "Assistant: ");
  const when = time === "" ? null : h("span", { class: "muted small" }, scene.format.moment(time));
  return h("li", { class: mine ? "message mine" : "message" }, h("p", { class: "bubble" }, who, said(text)), when);
}
