#pragma once

#include <exception>

#include "snug/base/front_end.h"
#include "snug/memory/out_of_budget.h"

namespace snug::testing {

/// What a language of its own might hand through LibTorch.
struct Translated {
  OutOfBudget::Details details;
};

/// A front end that has refusals as exceptions of its own, as Python has.
inline constexpr FrontEnd kTranslating{
    .translate =
        [](const std::exception_ptr& error) {
          try {
            std::rethrow_exception(error);
          } catch (const OutOfBudget& refusal) {
            throw Translated{refusal.details()};
          } catch (...) {  // has no translation
          }
        },
    .untranslate =
        [](const std::exception_ptr& error) {
          try {
            std::rethrow_exception(error);
          } catch (const Translated& translated) {
            return std::make_exception_ptr(OutOfBudget(translated.details));
          } catch (...) {
            return std::exception_ptr();
          }
        },
};

}  // namespace snug::testing
