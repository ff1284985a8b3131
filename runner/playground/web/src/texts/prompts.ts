/** What the view of prompts says. */
export const T = {
  title: "Prompts",
  none: "This server offers no prompts.",
  loading: "Loading…",
  choose: "Choose a prompt to fill it in.",
  noArguments: "This prompt takes no arguments.",
  get: "Get the prompt",
  nothing: "Fill it in, and its messages come here.",
  messages: "Messages",
  search: "Search prompts",
  reload: "Reload",
  copy: "Copy link",
};
