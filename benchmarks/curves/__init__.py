"""How cost grows: with clients, users, tools, the size of results and the size of a zygote."""
