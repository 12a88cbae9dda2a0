// snug._core: the core as the Python package calls it. Nothing here decides anything.
#include <torch/csrc/utils/pybind.h>

#include "python/bindings/agreement.h"
#include "python/bindings/errors.h"
#include "python/bindings/losses.h"
#include "python/bindings/memory.h"
#include "python/bindings/objects.h"
#include "python/bindings/operators.h"
#include "python/bindings/plans.h"
#include "python/bindings/regions.h"
#include "python/bindings/saved.h"
#include "python/bindings/sessions.h"
#include "python/bindings/steps.h"
#include "python/bindings/streaming.h"
#include "python/bindings/wrapped.h"

PYBIND11_MODULE(_core, m) {
  m.doc() = "The core of snug. Use the names of the package snug.";
  snug::python::bind_errors(m);
  snug::python::bind_agreement(m);
  snug::python::bind_memory(m);
  snug::python::bind_losses(m);
  snug::python::bind_operators(m);
  snug::python::bind_regions(m);
  snug::python::bind_plans(m);
  snug::python::bind_streaming(m);
  snug::python::bind_steps(m);
  snug::python::bind_sessions(m);
  snug::python::bind_saved(m);
  snug::python::bind_wrapped(m);
  snug::python::bind_objects(m);
}
