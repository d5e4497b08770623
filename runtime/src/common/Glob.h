//===- Glob.h - Patterns over parameter names -------------------*- C++ -*-===//
#ifndef MGQ_RUNTIME_COMMON_GLOB_H
#define MGQ_RUNTIME_COMMON_GLOB_H

#include <string>
#include <string_view>
#include <vector>

namespace mgq::rt {

/// Whether `name` as a whole matches: `*` any text, `?` one character, `[a-c]`
/// or `[!a-c]` one of a set, a backslash takes the next character literally.
bool globMatches(std::string_view pattern, std::string_view name);

/// Splits "A,B" at commas that no backslash or bracket protects.
std::vector<std::string> splitGlobs(std::string_view text);

/// Up to `limit` of `names`, nearest to `pattern` by edit distance.
std::vector<std::string> nearestNames(const std::string &pattern,
                                      const std::vector<std::string> &names,
                                      size_t limit = 3);

} // namespace mgq::rt

#endif // MGQ_RUNTIME_COMMON_GLOB_H
