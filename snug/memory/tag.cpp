#include "snug/memory/tag.h"

namespace snug::memory {
namespace {
thread_local Tag t_tag = Tag::Workspace;
}

Tag current_tag() noexcept { return t_tag; }

TagScope::TagScope(Tag tag) noexcept : previous_(t_tag) { t_tag = tag; }
TagScope::~TagScope() { t_tag = previous_; }

}  // namespace snug::memory
