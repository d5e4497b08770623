//===- YamlTree.cpp - A YAML document in memory ---------------------------===//

#include "passes/Planner/YamlTree.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/SourceMgr.h"
#include "llvm/Support/YAMLParser.h"

using namespace mgq::planner;
using llvm::Error;
using llvm::Expected;
using llvm::StringRef;
using llvm::Twine;

static Error located(StringRef path, unsigned line, unsigned column,
                     const Twine &text) {
  return llvm::createStringError(llvm::inconvertibleErrorCode(),
                                 Twine(path) + ":" + Twine(line) + ":" +
                                     Twine(column) + ": " + text);
}

const YamlNode *YamlNode::find(StringRef key) const {
  for (size_t k = 0; k < keys.size(); ++k)
    if (keys[k] == key)
      return &children[k];
  return nullptr;
}

Error YamlTree::error(const YamlNode &node, const Twine &text) const {
  return located(path, node.line, node.column, text);
}

Error YamlTree::expectKeys(const YamlNode &node, StringRef what,
                           llvm::ArrayRef<StringRef> known) const {
  if (node.kind != YamlNode::Mapping)
    return error(node, "expected " + what + ", a mapping with some of: " +
                           llvm::join(known, ", "));
  for (size_t k = 0; k < node.keys.size(); ++k)
    if (!llvm::is_contained(known, node.keys[k]))
      return error(node.children[k], "unknown key '" + node.keys[k] + "' of " +
                                         what +
                                         "; known: " + llvm::join(known, ", "));
  return Error::success();
}

namespace {
/// Reads nodes of LLVM's parser. The first fault is kept.
class Reader {
public:
  explicit Reader(llvm::SourceMgr &sources) : sources(sources) {}

  std::string fault; ///< Of the document's meaning; empty: none.
  unsigned faultLine = 1, faultColumn = 1;

  YamlNode read(llvm::yaml::Node *node) {
    YamlNode result;
    if (!node)
      return result;
    place(*node, result);
    llvm::SmallString<64> storage;
    if (auto *scalar = llvm::dyn_cast<llvm::yaml::ScalarNode>(node)) {
      result.kind = YamlNode::Scalar;
      result.text = scalar->getValue(storage).str();
    } else if (auto *list = llvm::dyn_cast<llvm::yaml::SequenceNode>(node)) {
      result.kind = YamlNode::Sequence;
      for (llvm::yaml::Node &item : *list)
        result.children.push_back(read(&item));
    } else if (auto *map = llvm::dyn_cast<llvm::yaml::MappingNode>(node)) {
      result.kind = YamlNode::Mapping;
      for (llvm::yaml::KeyValueNode &entry : *map)
        addEntry(result, entry);
    } else if (!llvm::isa<llvm::yaml::NullNode>(node)) {
      fail(result, "expected a value, a list or a mapping");
      node->skip();
    }
    return result;
  }

private:
  void place(llvm::yaml::Node &node, YamlNode &result) {
    llvm::SMLoc start = node.getSourceRange().Start;
    if (start.isValid())
      std::tie(result.line, result.column) =
          sources.getLineAndColumn(start, sources.getMainFileID());
  }

  void addEntry(YamlNode &map, llvm::yaml::KeyValueNode &entry) {
    YamlNode key = read(entry.getKey());
    YamlNode value = read(entry.getValue());
    if (key.kind != YamlNode::Scalar)
      return fail(key, "expected a key");
    if (map.find(key.text))
      return fail(key, "key '" + key.text + "' stands twice");
    // A null has no place of its own.
    if (value.kind == YamlNode::Null) {
      value.line = key.line;
      value.column = key.column;
    }
    map.keys.push_back(key.text);
    map.children.push_back(std::move(value));
  }

  void fail(const YamlNode &node, std::string text) {
    if (!fault.empty())
      return;
    fault = std::move(text);
    faultLine = node.line;
    faultColumn = node.column;
  }

  llvm::SourceMgr &sources;
};
} // namespace

Expected<YamlTree> mgq::planner::parseYaml(StringRef text, StringRef path) {
  llvm::SourceMgr sources;
  std::string message;
  unsigned line = 1, column = 1;
  struct Capture {
    std::string &message;
    unsigned &line, &column;
  } capture{message, line, column};
  sources.setDiagHandler(
      [](const llvm::SMDiagnostic &diagnostic, void *context) {
        Capture &capture = *static_cast<Capture *>(context);
        if (!capture.message.empty())
          return;
        capture.message = diagnostic.getMessage().str();
        capture.line = diagnostic.getLineNo();
        capture.column = diagnostic.getColumnNo() + 1;
      },
      &capture);
  llvm::yaml::Stream stream(text, sources, /*ShowColors=*/false);
  YamlTree tree;
  tree.path = path.str();
  Reader reader(sources);
  auto document = stream.begin();
  if (document != stream.end())
    tree.root = reader.read(document->getRoot());
  if (stream.failed() || !message.empty())
    return located(path, line, column,
                   message.empty() ? "not a YAML document" : message);
  if (!reader.fault.empty())
    return located(path, reader.faultLine, reader.faultColumn, reader.fault);
  return tree;
}
