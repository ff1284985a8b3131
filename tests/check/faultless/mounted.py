"""After FastMCP's mount example (Apache-2.0), rewritten. What is printed is printed by hand only."""

import asyncio

from fastmcp import FastMCP

weather = FastMCP("Weather")
news = FastMCP("News")
app = FastMCP("Main")


@weather.tool
def forecast(location: str) -> str:
    """Return the forecast for a place."""
    return f"Sunny skies over {location}"


@news.tool
def headlines() -> list[str]:
    """Return the headlines of today."""
    return ["A product is launched", "A team has won"]


@news.resource(uri="news://headlines")
async def headlines_data():
    return {"top": "Something happened", "sources": ["A", "B"]}


@app.tool
def status() -> dict[str, str]:
    """Return the state of the application."""
    return {"status": "running", "version": "1.0.0"}


app.mount(weather, namespace="weather")
app.mount(news, namespace="news")


async def show() -> None:
    for tool in await app.list_tools():
        print(f"- {tool.name}: {tool.description}")


if __name__ == "__main__":
    asyncio.run(show())
    app.run()
