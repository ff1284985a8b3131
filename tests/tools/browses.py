"""A tool that looks at a page with a browser, as people write it."""

import shutil

from fastmcp import FastMCP
from playwright.async_api import async_playwright

mcp = FastMCP("browses")


@mcp.tool
async def look(username: str, flags: list[str], program: str = "chromium-headless-shell") -> dict[str, str]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=shutil.which(program),
            args=["--no-sandbox", "--disable-gpu", *flags],
        )
        page = await browser.new_page(viewport={"width": 320, "height": 200})
        await page.set_content("<h1>Garden</h1><script>document.title = 6 * 7</script>")
        shot = await page.screenshot()
        seen = {"title": await page.title(), "text": await page.inner_text("h1"), "png": shot[:4].hex()}
        await browser.close()
    return seen
