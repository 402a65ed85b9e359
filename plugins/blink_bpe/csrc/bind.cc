// The module `_bpe`: the tokenizer for Python.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "blink_bpe/decoder.h"
#include "blink_bpe/encoder.h"
#include "blink_bpe/workspace_lease.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace blink::bpe;

namespace {

using Rules = nb::ndarray<const uint32_t, nb::shape<-1, 4>, nb::c_contig, nb::device::cpu>;
using Tokens = nb::typed<nb::list, nb::bytes>;
using Ids = nb::typed<nb::list, nb::int_>;
using Added = std::vector<std::tuple<std::string, uint32_t, bool, bool, bool>>;

// A shorter text is encoded sooner than another thread could make use of the interpreter lock.
constexpr size_t kLockedBytes = 1024;

Pattern pattern_named(const std::string& name) {
    if (name == "gpt2") return Pattern::kGpt2;
    if (name == "gpt2_digits") return Pattern::kGpt2Digits;
    if (name == "llama3") return Pattern::kLlama3;
    if (name == "qwen2") return Pattern::kQwen2;
    throw std::invalid_argument("no pattern is named " + name);
}

std::string_view view_of(nb::handle bytes) {
    char* data = nullptr;
    Py_ssize_t size = 0;
    if (PyBytes_AsStringAndSize(bytes.ptr(), &data, &size) != 0) throw nb::python_error();
    return {data, static_cast<size_t>(size)};
}

std::vector<AddedToken> added_tokens(const Added& given) {
    std::vector<AddedToken> tokens;
    for (const auto& [content, token, single_word, lstrip, rstrip] : given) {
        if (content.empty()) throw std::invalid_argument("an added token is empty");
        tokens.push_back({content, token, single_word, lstrip, rstrip});
    }
    return tokens;
}

// What a tokenizer.json says, checked as far as memory is concerned: bytes by id, ids of tokens that words can be.
Recipe recipe_of(const std::string& pattern, bool ignore_merges, const Tokens& tokens,
                 const std::vector<uint32_t>& mergeable, std::optional<uint32_t> unknown, const Rules& rules,
                 const Added& added, const Added& normalized) {
    Recipe recipe{pattern_named(pattern), ignore_merges, {}, {}, {}, added_tokens(added), added_tokens(normalized)};
    recipe.bytes.fill(unknown.value_or(kNone));
    for (const uint32_t id : mergeable) {
        if (id >= tokens.size()) throw std::invalid_argument("a token id is outside the vocabulary");
        const std::string_view word = view_of(tokens[id]);
        if (word.size() == 1) recipe.bytes[static_cast<uint8_t>(word[0])] = id;
        recipe.vocabulary.push_back({std::string(word), id});
    }
    for (size_t i = 0; i < rules.shape(0); ++i) {
        recipe.rules.push_back({rules(i, 0), rules(i, 1), {rules(i, 2), rules(i, 3)}});
    }
    return recipe;
}

std::vector<std::string> strings_of(const Tokens& tokens) {
    std::vector<std::string> strings;
    for (nb::handle token : tokens) strings.emplace_back(view_of(token));
    return strings;
}

class Tokenizer {
  public:
    Tokenizer(const std::string& pattern, bool ignore_merges, const Tokens& tokens,
              const std::vector<uint32_t>& mergeable, std::optional<uint32_t> unknown, const Rules& rules,
              const Added& added, const Added& normalized, const std::vector<uint32_t>& special, nb::object normalize)
        : encoder_(recipe_of(pattern, ignore_merges, tokens, mergeable, unknown, rules, added, normalized)),
          decoder_(strings_of(tokens), special), normalize_(std::move(normalize)) {}

    Ids encode(const nb::str& text) const {
        Py_ssize_t size = 0;
        const char* data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
        if (data == nullptr) throw nb::python_error();
        const std::string_view view{data, static_cast<size_t>(size)};
        WorkspaceLease workspace;
        if (!normalize_.is_none() && may_change(view)) {
            encode_normalized(view, *workspace);
        } else if (view.size() > kLockedBytes) {
            const nb::gil_scoped_release unlocked;
            encoder_.encode(view, *workspace);
        } else {
            encoder_.encode(view, *workspace);
        }
        return list_of(workspace->tokens);
    }

    nb::str decode(const nb::typed<nb::sequence, nb::int_>& ids, bool skip_special) const {
        std::string bytes;
        for (nb::handle id : ids) decoder_.append(nb::cast<uint32_t>(id), skip_special, bytes);
        PyObject* text = PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "replace");
        if (text == nullptr) throw nb::python_error();
        return nb::steal<nb::str>(text);
    }

    nb::bytes token_bytes(int64_t id) const {
        const std::string_view bytes = id < 0 || id > UINT32_MAX ? "" : decoder_.bytes(static_cast<uint32_t>(id));
        return nb::bytes(bytes.data(), bytes.size());
    }

    const char* classifier() const { return encoder_.classifier(); }

  private:
    // The normalizer is Python's: the lock is taken again for each part of the text that is between added tokens.
    void encode_normalized(std::string_view text, Workspace& workspace) const {
        const nb::gil_scoped_release unlocked;
        encoder_.encode(text, workspace, [&](std::string_view part) {
            const nb::gil_scoped_acquire locked;
            return nb::cast<std::string>(normalize_(nb::str(part.data(), part.size())));
        });
    }

    static Ids list_of(const std::vector<uint32_t>& tokens) {
        auto list = nb::steal<Ids>(PyList_New(static_cast<Py_ssize_t>(tokens.size())));
        if (!list.is_valid()) throw nb::python_error();
        for (size_t i = 0; i < tokens.size(); ++i) {
            PyObject* number = PyLong_FromUnsignedLong(tokens[i]);
            if (number == nullptr) throw nb::python_error();
            PyList_SET_ITEM(list.ptr(), static_cast<Py_ssize_t>(i), number);
        }
        return list;
    }

    Encoder encoder_;
    Decoder decoder_;
    nb::object normalize_;
};

}  // namespace

NB_MODULE(_bpe, m) {
    m.doc() = "Byte-level BPE: text to token ids and back.";
    nb::class_<Tokenizer>(m, "Tokenizer")
        .def(nb::init<const std::string&, bool, const Tokens&, const std::vector<uint32_t>&, std::optional<uint32_t>,
                      const Rules&, const Added&, const Added&, const std::vector<uint32_t>&, nb::object>(),
             nb::kw_only(), "pattern"_a, "ignore_merges"_a, "tokens"_a, "mergeable"_a, "unknown"_a.none(), "rules"_a,
             "added"_a, "normalized"_a, "special"_a, "normalize"_a.none(),
             "`pattern`: gpt2, gpt2_digits, llama3 or qwen2. `tokens`: bytes by id, none for an id that is no token.\n"
             "`mergeable`: ids that words can become. `unknown`: what a byte without a token becomes, or None: it is "
             "dropped.\n"
             "`rules`: uint32 [rules, 4] of left, right, rank, result.\n"
             "`added`, `normalized`: (content, id, single_word, lstrip, rstrip) of the tokens that are found in\n"
             "text as it is, and of those found after `normalize`, which takes and returns text, or None.")
        .def("encode", &Tokenizer::encode, "text"_a,
             "Ids of a text. Raises UnicodeEncodeError for lone surrogates. Releases the interpreter lock\n"
             "for texts of more than 1,024 bytes.")
        .def("decode", &Tokenizer::decode, "ids"_a, nb::kw_only(), "skip_special"_a,
             "The text of ids; incomplete UTF-8 becomes U+FFFD, ids that are no token nothing.")
        .def("token_bytes", &Tokenizer::token_bytes, "id"_a, "The bytes of one token; none for an id that is no token.")
        .def_prop_ro("classifier", &Tokenizer::classifier, "How bytes are classified: avx2, neon or plain.");
}
