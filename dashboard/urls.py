"""Pages of the dashboard. Each list and page also has a `.csv` and a `.json` form of what it shows."""

from __future__ import annotations

from django.urls import path, register_converter

from dashboard import url_keys  # noqa: F401 - registers <key:pk>
from dashboard.accounts.sign_in import PasswordChange, SignIn, SignOut
from dashboard.audit.views import audit_log
from dashboard.compare.views import commits, compare_runs
from dashboard.history import views as history
from dashboard.overview.views import overview
from dashboard.planner.views import roofline
from dashboard.regressions import views as regressions
from dashboard.runs import views
from dashboard.sweeps import views as sweeps
from dashboard.traces.views import trace


class ExportForm:
    """The path converter `<export:form>`: "csv" or "json"."""

    regex = "csv|json"

    def to_python(self, value: str) -> str:
        return value

    def to_url(self, value: str) -> str:
        return value


register_converter(ExportForm, "export")

app_name = "dashboard"
urlpatterns = [
    path("", overview, name="overview"),
    path("runs/", views.runs, name="runs"),
    path("runs.<export:form>", views.runs_export, name="runs_export"),
    path("runs/<key:pk>/", views.run, name="run"),
    path("runs/<key:pk>/pin/", regressions.pin, name="run_pin"),
    path("runs/<key:pk>/trace.json", trace, name="run_trace"),
    path("runs/<key:pk>.<export:form>", views.run_export, name="run_export"),
    path("compare/", compare_runs, name="compare"),
    path("compare/commits/", commits, name="commits"),
    path("history/", history.history, name="history"),
    path("history.<export:form>", history.history_export, name="history_export"),
    path("history/notes/", history.note_add, name="note_add"),
    path("history/notes/<key:pk>/remove/", history.note_remove, name="note_remove"),
    path("regressions/", regressions.regressions, name="regressions"),
    path("regressions/<key:pk>/", regressions.regression, name="regression"),
    path("regressions/<key:pk>/acknowledge/", regressions.acknowledge, name="regression_acknowledge"),
    path("regressions/<key:pk>/accept/", regressions.accept, name="regression_accept"),
    path("regressions/<key:pk>/comment/", regressions.comment, name="regression_comment"),
    path("roofline/", roofline, name="roofline"),
    path("sign-in/", SignIn.as_view(), name="sign_in"),
    path("password/", PasswordChange.as_view(), name="password"),
    path("sign-out/", SignOut.as_view(), name="sign_out"),
    path("audit/", audit_log, name="audit"),
    path("sweeps/", sweeps.sweeps, name="sweeps"),
    path("sweeps/start/", sweeps.sweep_start, name="sweep_start"),
    path("sweeps/<key:pk>/", sweeps.sweep_run, name="sweep_run"),
    path("sweeps/<key:pk>.<export:form>", sweeps.sweep_run_export, name="sweep_run_export"),
    path("sweeps/<key:pk>/live/", sweeps.sweep_run_live, name="sweep_run_live"),
    path("sweeps/<key:pk>/cancel/", sweeps.sweep_run_cancel, name="sweep_run_cancel"),
    path("sweeps/<key:pk>/retry/", sweeps.sweep_run_retry, name="sweep_run_retry"),
]
