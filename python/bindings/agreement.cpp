// How processes that train together decide, by a Python function.
#include "python/bindings/agreement.h"

#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "python/bindings/errors.h"
#include "snug/replay/agreement.h"

namespace snug::python {
namespace {

namespace py = pybind11;

/// `gather`: from this process's vote to those of all, as numbers. Asked without the GIL, from any thread.
class PyAgreement final : public Agreement {
 public:
  explicit PyAgreement(py::function gather) : gather_(std::move(gather)) {}
  ~PyAgreement() override {
    const py::gil_scoped_acquire gil;
    gather_.reset();
  }

  std::vector<Vote> votes(Vote mine) override {
    const py::gil_scoped_acquire gil;
    try {
      std::vector<Vote> votes;
      for (const int vote : (*gather_)(static_cast<int>(mine)).cast<std::vector<int>>()) {
        votes.push_back(static_cast<Vote>(vote));
      }
      return votes;
    } catch (py::error_already_set& error) {
      pass_on(error);
    }
  }

 private:
  std::optional<py::function> gather_;
};

}  // namespace

void bind_agreement(py::module_& m) {
  py::class_<Agreement, std::shared_ptr<Agreement>>(m, "Agreement").def(py::init([](py::function gather) {
    return std::make_shared<PyAgreement>(std::move(gather));
  }));
}

}  // namespace snug::python
