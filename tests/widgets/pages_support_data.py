"""Sample results for each page: nothing, one thing, the most, long texts, right to left, broken."""

import base64
from collections.abc import Mapping
from typing import Any

__all__ = ["BROKEN", "HOSTILE", "NAMES", "PIXEL", "SAMPLES", "hostile"]

NAMES = (
    "chat-view",
    "dashboard-widget",
    "search-results",
    "pizzaz-table",
    "kitchen-sink-lite",
    "pizzaz-carousel",
    "pizzaz-gallery",
    "pizzaz-markdown",
    "solar-system",
)

PIXEL = "data:image/png;base64," + base64.b64encode(
    bytes.fromhex(
        "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360f8cfc0f01f00050001ff56c7"
        "2f0d0000000049454e44ae426082"
    )
).decode("ascii")

LONG = "An uncommonly long sentence that goes on and on, as people and models write them. " * 12
UNBROKEN = "Donaudampfschifffahrtsgesellschaftskapitänswitwenrentenauszahlungsstelle" * 6
ARABIC = "أفضل مطاعم البيتزا في المدينة القديمة"
HEBREW = "פיצה עם זיתים, 12 יחידות (חדש)"


def pizza(number: int) -> dict[str, Any]:
    names = (
        "Margherita",
        "Diavola",
        "Quattro formaggi",
        "Capricciosa",
        "Marinara",
        "Napoli",
        "Ortolana",
        "Bufalina",
    )
    name = names[number % len(names)] + (f" {number // len(names) + 1}" if number >= len(names) else "")
    return {
        "name": name,
        "price": 8.5 + number * 1.25,
        "vegetarian": number % 2 == 0,
        "since": f"20{10 + number % 15}-03-0{1 + number % 9}",
    }


def result(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "title": f"Pizzeria {pizza(number)['name']}",
        "description": "Wood-fired oven, dough that rests for two days, and a terrace under plane trees.",
        "url": f"https://www.example.com/places/pizzeria-{number}",
        "tags": ["wood oven", "terrace", "open late"][: 1 + number % 3],
    }


def item(number: int) -> dict[str, Any]:
    return {
        "title": pizza(number)["name"],
        "subtitle": "Via dei Tribunali, Napoli",
        "description": "San Marzano tomatoes, basil and a soft, charred rim.",
        "image": {"src": PIXEL, "alt": f"A whole {pizza(number)['name']} on a plate"} if number % 2 else None,
        "badge": f"{4 + number % 10 / 10} ★",
        "action": {"label": "Order", "prompt": f"Order a {pizza(number)['name']}."},
    }


MARKDOWN = """# Pizza, briefly

A *good* pizza needs **four things**, and `time`. See [the recipe](https://example.com/recipe "really") or <https://example.com>.

## Dough

1. Mix flour and water
2. Wait
   - an hour at least
   - better: a night
3. Bake

- [x] oven hot
- [ ] basil washed

> Simplicity is the hardest thing.

| Pizza | Price | Vegetarian |
|:------|------:|:----------:|
| Margherita | 8.50 | yes |
| Diavola | 11.00 | no |

```python
def bake(pizza: Pizza, minutes: float = 1.5) -> Meal:
    return oven(480).bake(pizza, minutes)
```

![A plate](https://example.com/plate.png)

---

That is ~~nearly~~ all.
"""

STATS = (
    {"label": "Conversations", "value": "1,284", "change": "+12.5%"},
    {"label": "Median answer", "value": "1.8 s", "change": "-0.3 s"},
    {"label": "Tool calls", "value": "9,431", "change": "+4.1%"},
    {"label": "Errors", "value": "0.4%", "change": "0%"},
)
CHATS = (
    {"id": 1, "title": "Plan a dinner for eight", "model": "large", "time": "2 hours ago"},
    {"id": "b", "title": "Compare three ovens", "model": "small", "time": "2026-11-20T18:05:00Z"},
    {"id": 3, "title": "Translate the menu", "model": "large", "time": "yesterday"},
)

# name → kind → (what the tool returned, a text that must then be seen)
SAMPLES: Mapping[str, Mapping[str, tuple[Any, str]]] = {
    "chat-view": {
        "none": ({"seedMessage": "", "locale": "en"}, "Start a conversation"),
        "one": ({"seedMessage": "Which pizza goes with a light red wine?", "locale": "en"}, "light red wine"),
        "most": (
            {
                "seedMessage": "Hello",
                "messages": [
                    {
                        "role": "assistant" if n % 2 else "user",
                        "text": f"Message number {n}",
                        "time": "2026-11-20T18:05:00Z",
                    }
                    for n in range(200)
                ],
            },
            "Message number 199",
        ),
        "long": ({"seedMessage": LONG + UNBROKEN, "locale": "en"}, "uncommonly long"),
        "rtl": ({"seedMessage": ARABIC, "locale": "ar"}, ARABIC),
    },
    "dashboard-widget": {
        "none": ({"dashboard": True}, "Nothing to report yet"),
        "one": (
            {"dashboard": True, "headerText": "Today", "stats": [STATS[0]], "recentChats": [CHATS[0]]},
            "1,284",
        ),
        "most": (
            {
                "dashboard": True,
                "headerText": "This week",
                "stats": [STATS[n % 4] | {"label": f"{STATS[n % 4]['label']} {n + 1}"} for n in range(60)],
                "recentChats": [CHATS[n % 3] | {"id": n} for n in range(200)],
            },
            "54 more figures",
        ),
        "long": (
            {
                "dashboard": True,
                "headerText": LONG,
                "stats": [{"label": LONG, "value": UNBROKEN, "change": LONG}],
                "recentChats": [{"id": 1, "title": UNBROKEN, "model": LONG, "time": LONG}],
            },
            "uncommonly long",
        ),
        "rtl": (
            {
                "dashboard": True,
                "headerText": ARABIC,
                "locale": "ar",
                "stats": [{"label": ARABIC, "value": "12", "change": "+3%"}],
                "recentChats": [{"id": 1, "title": HEBREW, "model": "large", "time": "2026-11-20"}],
            },
            ARABIC,
        ),
    },
    "search-results": {
        "none": ({"query": "pizza", "results": [], "locale": "en"}, "No results for “pizza”"),
        "one": ({"query": "pizza", "results": [result(0)], "locale": "en"}, "1 result"),
        "most": (
            {"query": "pizza", "results": [result(n) for n in range(500)], "locale": "en"},
            "500 results",
        ),
        "long": (
            {
                "query": LONG,
                "results": [
                    {
                        "id": 1,
                        "title": UNBROKEN,
                        "description": LONG * 5,
                        "url": "https://example.com/" + UNBROKEN,
                        "tags": [LONG] * 30,
                    }
                ],
            },
            "uncommonly long",
        ),
        "rtl": (
            {
                "query": ARABIC,
                "results": [
                    {
                        "id": 1,
                        "title": HEBREW,
                        "description": ARABIC,
                        "url": "https://example.com/ar",
                        "tags": [HEBREW],
                    }
                ],
                "locale": "ar",
            },
            HEBREW,
        ),
    },
    "pizzaz-table": {
        "none": ({"columns": ["name", "price"], "data": [], "locale": "en"}, "No rows."),
        "one": ({"columns": ["name", "price"], "data": [pizza(0)], "locale": "en"}, "Margherita"),
        "most": (
            {
                "title": "All pizzas",
                "columns": ["name", "price", "vegetarian", "since"],
                "data": [pizza(n) for n in range(10_050)],
                "locale": "en",
            },
            "10,050 rows",
        ),
        "long": (
            {
                "title": LONG,
                "columns": ["name", UNBROKEN],
                "data": [{"name": LONG, UNBROKEN: UNBROKEN}],
                "locale": "en",
            },
            "uncommonly long",
        ),
        "rtl": (
            {
                "title": ARABIC,
                "columns": ["الاسم", "السعر"],
                "data": [{"الاسم": HEBREW, "السعر": 1234.5}],
                "locale": "ar",
            },
            HEBREW,
        ),
    },
    "kitchen-sink-lite": {
        "none": ({}, "Kitchen sink"),
        "one": ({"demo": True}, '{"demo":true}'),
        "most": ({"demo": True, "numbers": list(range(5000))}, '"numbers":[0,1,2'),
        "long": ({"demo": True, "text": LONG + UNBROKEN}, "uncommonly long"),
        "rtl": ({"demo": True, "text": ARABIC, "locale": "ar"}, ARABIC),
    },
    "pizzaz-carousel": {
        "none": ({"items": []}, "Nothing to show"),
        "one": ({"title": "Our pick", "items": [item(0)]}, "Margherita"),
        "most": ({"title": "Pizzas nearby", "items": [item(n) for n in range(40)]}, "8 of 40 items"),
        "long": (
            {
                "title": LONG,
                "items": [
                    {
                        "title": LONG,
                        "subtitle": UNBROKEN,
                        "description": LONG,
                        "badge": UNBROKEN,
                        "action": {"label": LONG, "prompt": LONG},
                    }
                ]
                * 3,
            },
            "uncommonly long",
        ),
        "rtl": (
            {"title": ARABIC, "locale": "ar", "items": [{"title": HEBREW, "subtitle": ARABIC}] * 3},
            HEBREW,
        ),
    },
    "pizzaz-gallery": {
        "none": ({"images": []}, "No pictures"),
        "one": (
            {
                "title": "The oven",
                "images": [{"src": PIXEL, "alt": "A brick oven", "caption": "Built in 1908"}],
            },
            "Built in 1908",
        ),
        "most": (
            {
                "title": "The kitchen",
                "images": [
                    {"src": PIXEL, "alt": f"Picture {n}", "caption": f"Shelf {n}"} for n in range(300)
                ],
            },
            "300 pictures",
        ),
        "long": (
            {"title": LONG, "images": [{"src": PIXEL, "alt": LONG, "caption": UNBROKEN}]},
            "uncommonly long",
        ),
        "rtl": (
            {"title": ARABIC, "locale": "ar", "images": [{"src": PIXEL, "alt": HEBREW, "caption": HEBREW}]},
            HEBREW,
        ),
    },
    "pizzaz-markdown": {
        "none": ({"markdown": ""}, "Nothing written"),
        "one": ({"markdown": "One *short* line."}, "One short line."),
        "most": ({"title": "Everything", "markdown": MARKDOWN * 100}, "Read more"),
        "long": ({"title": LONG, "markdown": LONG * 20 + UNBROKEN}, "uncommonly long"),
        "rtl": ({"locale": "ar", "markdown": f"# {ARABIC}\n\n{HEBREW}\n\n- {ARABIC}\n"}, HEBREW),
    },
    "solar-system": {
        "none": ({}, "8 planets"),
        "one": ({"planet": "Mars"}, "Olympus Mons"),
        "most": ({"planet": "neptune", "title": "Our neighbourhood", "locale": "en"}, "Neptune"),
        "long": ({"planet": LONG, "title": LONG}, "There is no planet named"),
        "rtl": ({"planet": "Saturn", "title": ARABIC, "locale": "ar"}, ARABIC),
    },
}

BROKEN: tuple[Any, ...] = (
    7,
    True,
    "just a text",
    [],
    [None, 3, "x", [[]]],
    {
        "seedMessage": {"a": 1},
        "messages": 3,
        "stats": "none",
        "recentChats": {},
        "results": 5,
        "columns": {},
        "items": "x",
        "images": 9,
        "markdown": [1],
        "planet": [],
    },
    {
        "messages": [None, 1],
        "stats": [1, None],
        "results": [[], "x"],
        "columns": [None, {}],
        "data": [1, "a", None, [2]],
        "items": [0, None, "x", {}],
        "locale": 12,
    },
    {
        "locale": "not a locale at all",
        "query": None,
        "results": None,
        "columns": None,
        "data": None,
        "items": None,
        "markdown": None,
        "title": {"x": 1},
    },
    {"structuredContent": {"x": 1}, "content": [None, {"type": 3}]},
)

HOSTILE = (
    '<img src=x onerror="window.pwned=1">',
    "<script>window.pwned=1</script>",
    "</script><script>window.pwned=1</script>",
    "<svg onload=window.pwned=1>",
    "<iframe srcdoc='<script>parent.pwned=1</script>'></iframe>",
    '"><a href="javascript:window.pwned=1" autofocus onfocus=window.pwned=1>x</a>',
    "{{constructor.constructor('window.pwned=1')()}}",
    "\u202e\u0000\ufeffreversed",
)
ADDRESSES = (
    "javascript:window.pwned=1",
    "JaVaScRiPt:window.pwned=1",
    "\x01javascript:window.pwned=1",
    "java\nscript:window.pwned=1",
    "data:text/html,<script>window.pwned=1</script>",
    "data:image/svg+xml,<svg onload='window.pwned=1'/>",
    "vbscript:x",
    "file:///etc/passwd",
    "//example.com/x",
    "https://user:secret@example.com/",
    "blob:null/x",
)


def hostile(name: str) -> list[Any]:
    """Every text of a page's data is an attack, every address as well, and keys are those of prototypes."""
    found: list[Any] = []
    for number, attack in enumerate(HOSTILE):
        address = ADDRESSES[number % len(ADDRESSES)]
        marked = f"{attack}\n\n[{attack}]({address}) ![{attack}]({address}) <{address}>\n\n```{attack}\n```"
        named = (
            "id",
            "title",
            "name",
            "description",
            "subtitle",
            "label",
            "value",
            "change",
            "model",
            "time",
        )
        thing = dict.fromkeys((*named, "alt", "caption", "badge", "role", "text", attack), attack) | {
            "url": address,
            "src": address,
            "tags": [attack],
            "image": {"src": address, "alt": attack},
            "action": {"label": attack, "href": address},
            "__proto__": {"pwned": 1},
            "constructor": {"prototype": {"pwned": 1}},
        }
        found.append(
            {
                "seedMessage": attack,
                "messages": [thing],
                "headerText": attack,
                "stats": [thing],
                "recentChats": [thing],
                "query": attack,
                "results": [thing],
                "title": attack,
                "columns": [attack, "__proto__", "constructor"],
                "data": [thing],
                "items": [thing] * 4,
                "markdown": marked,
                "planet": attack,
                "locale": attack,
                "demo": True,
                "__proto__": {"pwned": 1},
                "constructor": {"prototype": {"pwned": 1}},
                "toString": attack,
            }
            | ({"images": [thing]} if name == "pizzaz-gallery" else {})
        )
    if name == "search-results":
        found += [
            {"query": "x", "results": [{"id": 1, "title": "t", "url": address} for address in ADDRESSES]}
        ]
    return found
