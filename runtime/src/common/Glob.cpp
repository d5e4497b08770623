//===- Glob.cpp - Patterns over parameter names ---------------------------===//

#include "runtime/src/common/Glob.h"
#include <algorithm>
#include <numeric>

using namespace mgq::rt;

/// Length of the set `[...]` at the start of `pattern`, 0 if it is not closed.
static size_t setLength(std::string_view pattern) {
  size_t i = 1;
  if (i < pattern.size() && (pattern[i] == '!' || pattern[i] == '^'))
    ++i;
  for (size_t first = i; i < pattern.size(); ++i) {
    if (pattern[i] == '\\')
      ++i;
    else if (pattern[i] == ']' && i > first)
      return i + 1;
  }
  return 0;
}

/// Whether `c` is in `set`, which is "[...]".
static bool setContains(std::string_view set, char c) {
  size_t i = 1, end = set.size() - 1;
  bool negated = set[i] == '!' || set[i] == '^', found = false;
  auto next = [&] {
    if (set[i] == '\\' && i + 1 < end)
      ++i;
    return static_cast<unsigned char>(set[i++]);
  };
  i += negated;
  while (i < end) {
    unsigned char low = next(), high = low;
    if (i + 1 < end && set[i] == '-') {
      ++i;
      high = next();
    }
    unsigned char value = c;
    found |= low <= value && value <= high;
  }
  return found != negated;
}

/// Length of the pattern's first item if it matches `c`, else 0.
static size_t matchOne(std::string_view pattern, char c) {
  switch (pattern[0]) {
  case '?':
    return 1;
  case '\\':
    if (pattern.size() > 1)
      return pattern[1] == c ? 2 : 0;
    break;
  case '[':
    if (size_t length = setLength(pattern))
      return setContains(pattern.substr(0, length), c) ? length : 0;
    break;
  default:
    break;
  }
  return pattern[0] == c;
}

bool mgq::rt::globMatches(std::string_view pattern, std::string_view name) {
  // On a mismatch the last `*` takes one character more: linear in practice,
  // never exponential.
  size_t p = 0, n = 0, starPattern = std::string_view::npos, starName = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      starPattern = ++p;
      starName = n;
      continue;
    }
    size_t length =
        p < pattern.size() ? matchOne(pattern.substr(p), name[n]) : 0;
    if (length) {
      p += length;
      ++n;
    } else if (starPattern != std::string_view::npos) {
      p = starPattern;
      n = ++starName;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*')
    ++p;
  return p == pattern.size();
}

std::vector<std::string> mgq::rt::splitGlobs(std::string_view text) {
  std::vector<std::string> parts(1);
  for (size_t i = 0; i < text.size(); ++i) {
    size_t length = 1;
    if (text[i] == ',') {
      parts.emplace_back();
      continue;
    }
    if (text[i] == '\\' && i + 1 < text.size())
      length = 2;
    else if (text[i] == '[')
      length = std::max<size_t>(1, setLength(text.substr(i)));
    parts.back() += text.substr(i, length);
    i += length - 1;
  }
  return parts;
}

/// Edit distance where characters of the name that a `*` covers cost nothing.
static size_t distance(std::string_view pattern, std::string_view name) {
  std::vector<size_t> row(name.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (char p : pattern) {
    size_t diagonal = row[0];
    row[0] += p != '*';
    for (size_t i = 1; i <= name.size(); ++i) {
      size_t above = row[i];
      row[i] = p == '*' ? std::min(above, row[i - 1])
                        : std::min({above + 1, row[i - 1] + 1,
                                    diagonal + (p != '?' && p != name[i - 1])});
      diagonal = above;
    }
  }
  return row.back();
}

std::vector<std::string>
mgq::rt::nearestNames(const std::string &pattern,
                      const std::vector<std::string> &names, size_t limit) {
  std::vector<std::pair<size_t, std::string>> ranked;
  for (const std::string &name : names)
    ranked.emplace_back(distance(pattern, name), name);
  limit = std::min(limit, ranked.size());
  std::partial_sort(ranked.begin(), ranked.begin() + limit, ranked.end());
  std::vector<std::string> result;
  for (size_t i = 0; i < limit; ++i)
    result.push_back(ranked[i].second);
  return result;
}
