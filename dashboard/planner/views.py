"""`/dashboard/roofline/`: a form in the URL, a chart and tables drawn by the server."""

from __future__ import annotations

from http import HTTPStatus

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from dashboard.planner.forms import PlannerForm
from dashboard.planner.measured import measured_hardware, measured_points, usual_utilisation
from dashboard.planner.page import PlannerPage, planner_page


@require_safe
def roofline(request: HttpRequest) -> HttpResponse:
    points = measured_points()
    machines = measured_hardware()
    form = PlannerForm(request.GET, [machine.name for machine in machines], usual_utilisation(points))
    page: PlannerPage | None = None
    if form.is_valid():
        try:
            page = planner_page(form.cleaned_data, points, machines)
        except ValueError as error:
            form.add_error("context", f"{error}.")
    context = {"form": form, "page": page, "machines": machines, "section": "roofline"}
    status = HTTPStatus.OK if page else HTTPStatus.BAD_REQUEST
    return render(request, "dashboard/roofline.html", context, status=status)
