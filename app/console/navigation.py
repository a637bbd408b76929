"""The pages that every page leads to, in their order."""

import msgspec

from app.api.access import ANY_KEY


class NavigationEntry(msgspec.Struct, frozen=True):
    """Shown to keys with the scope. `g` and then `key` on the keyboard leads to it."""

    title: str
    path: str
    scope: str
    key: str

    def leads_to(self, path: str) -> bool:
        """
        >>> tasks = NavigationEntry("Tasks", "/console/tasks", "tasks", "t")
        >>> tasks.leads_to("/console/tasks/1"), tasks.leads_to("/console/tasksets")
        (True, False)
        """
        return path == self.path or path.startswith(f"{self.path}/")


HOME = "/console"
NAVIGATION = (
    NavigationEntry("Home", HOME, ANY_KEY, "h"),
    NavigationEntry("Tasks", "/console/tasks", "tasks", "t"),
    NavigationEntry("Approvals", "/console/approvals", "approvals", "v"),
    NavigationEntry("Feedback", "/console/feedback", "tasks", "f"),
    NavigationEntry("APIs", "/console/apis", "tasks", "a"),
    NavigationEntry("Skills", "/console/skills", "skills", "s"),
    NavigationEntry("Releases", "/console/releases", "tasks", "r"),
    NavigationEntry("Runs", "/console/runs", "admin", "n"),
    NavigationEntry("Exams", "/console/exams", "admin", "e"),
    NavigationEntry("Models", "/console/models", "admin", "m"),
    NavigationEntry("Secrets", "/console/secrets", "admin", "x"),
    NavigationEntry("Projects", "/console/projects", "tasks", "p"),
    NavigationEntry("Keys", "/console/keys", "admin", "k"),
    NavigationEntry("Usage", "/console/usage", "tasks", "u"),
    NavigationEntry("Audit", "/console/audit", "admin", "l"),
    NavigationEntry("Webhook", "/console/webhooks", "admin", "w"),
    NavigationEntry("Health", "/console/health", "admin", "y"),
)
