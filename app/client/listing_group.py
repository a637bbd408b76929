"""A group of commands about one resource."""

import click


class ListingGroup(click.Group):
    """Without a command it lists: `sage skills --state active` is `sage skills list --state active`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)
