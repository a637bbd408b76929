from app.garbage_collection import collect_seldom

collect_seldom()  # nearly every process that imports this package imports torch next
