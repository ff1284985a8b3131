/** Markdown: written as elements of the page, one by one. HTML in it is shown as text, pictures from elsewhere are only named, links say where they lead. */
import { h, type ComponentChildren, type JSX } from "preact";
import { useMemo } from "preact/hooks";
import { safeHref } from "../../../../widgets/web/bridge/arguments.ts";
import { isOwn } from "../../../../widgets/web/hosting/own.ts";
import { leadsTo, namesAnotherHost } from "../../../../widgets/web/markdown/links.ts";
import { draw, MOST, type Maker } from "../../../../widgets/web/markdown/markdown.ts";
import { plain } from "../model/plain";
import { Trouble, Waiting } from "./canvas";
import { Coloured, languageOf } from "./code";
import { head, useLoaded } from "./content";
import type { Item } from "./items";
import { count } from "../texts/numbers";

export function MarkdownView({ item }: { item: Item }): JSX.Element {
  const loaded = useLoaded(item, (signal) => head(item, MOST, signal));
  if (loaded.problem !== null) return <Trouble problem={loaded.problem} />;
  if (loaded.value === null) return <Waiting />;
  return (
    <>
      <Markdown text={loaded.value.text} />
      {loaded.value.cut && <p class="soft small">The first {count(MOST)} bytes. Download it for the rest.</p>}
    </>
  );
}

export function Markdown({ text }: { text: string }): JSX.Element {
  // Below the page's own heading.
  const written = useMemo(() => draw(text, 1, MAKER), [text]);
  return (
    <>
      <article class="prose">{written.children}</article>
      {written.cut && <p class="soft small">It has more parts than are shown here. Download it for the rest.</p>}
    </>
  );
}

const MAKER: Maker<ComponentChildren> = {
  element: (tag, props, children) => h(tag, props, ...children),
  text: plain,
  code: (source, named) => <Coloured text={source} language={languageOf(named.split(/\s/)[0] ?? "")} />,
  link: (address, text, children) => <Link address={address} text={text}>{children}</Link>,
  picture: (alt, address) => <span class="badge" title={plain(address)}>{`picture: ${plain(alt || address)}`}</span>,
  table: (children) => <div class="scroll"><table class="grid">{children}</table></div>,
  task: (done) => <input type="checkbox" disabled checked={done} aria-label={done ? "done" : "open"} />,
};

/** A link of a document, if it leads somewhere that a document may lead to; with the place, if its text names another. */
function Link({ address, text, children }: { address: string; text: string; children: ComponentChildren }): JSX.Element {
  const href = safeHref(address);
  if (href === undefined) return <Closed address={address} why="it is not a web address, or has a user name in it">{children}</Closed>;
  if (isOwn(new URL(href), location)) return <Closed address={address} why="it leads to this server, where it would act as you">{children}</Closed>;
  const shown = text === address ? plain(text) : children;
  const link = <a href={href} title={href} target="_blank" rel="noopener noreferrer nofollow">{shown}</a>;
  return namesAnotherHost(text, href) ? <>{link} <span class="badge network">{`leads to ${plain(leadsTo(href))}`}</span></> : link;
}

function Closed({ address, why, children }: { address: string; why: string; children: ComponentChildren }): JSX.Element {
  return <span class="closed" title={`${plain(address).slice(0, 200)} is not opened: ${why}`}>{children}</span>;
}
