from app.base.processes import collect_seldom

collect_seldom()  # nearly every process that imports this package imports torch next
