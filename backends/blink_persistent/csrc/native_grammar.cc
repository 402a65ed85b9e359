// The native module's binding of grammars: vocabularies as trees, and tables made of them.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstring>
#include <memory>

#include "blink/grammar_builder.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace blink;

namespace {

template <class T>
using Array1 = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Table = nb::ndarray<nb::numpy, int32_t, nb::ndim<1>>;

void make_trie(TokenTrie* self, Array1<uint8_t> bytes, Array1<uint64_t> offsets) {
    if (offsets.shape(0) == 0 || offsets(0) != 0) throw std::invalid_argument("offsets begin with 0");
    for (size_t i = 1; i < offsets.shape(0); ++i)
        if (offsets(i) < offsets(i - 1) || offsets(i) > bytes.shape(0))
            throw std::invalid_argument("offsets ascend and stay within the bytes");
    const nb::gil_scoped_release release;
    new (self) TokenTrie(bytes.data(), offsets.data(), static_cast<uint32_t>(offsets.shape(0) - 1));
}

Table build_grammar(const TokenTrie& trie, Array1<uint8_t> class_of,
                    nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu> next,
                    Array1<uint8_t> accepting, uint64_t most_words, double seconds) {
    const auto states = static_cast<uint32_t>(next.shape(0)), classes = static_cast<uint32_t>(next.shape(1));
    if (class_of.shape(0) != 256 || states == 0 || accepting.shape(0) != states)
        throw std::invalid_argument("an automaton has 256 classes of bytes and a flag for each state");
    for (size_t i = 0; i < 256; ++i)
        if (class_of(i) >= classes) throw std::invalid_argument("a byte's class is beyond the automaton's");
    for (size_t i = 0; i < next.size(); ++i)
        if (next.data()[i] >= static_cast<int32_t>(states))
            throw std::invalid_argument("a transition leads beyond the automaton's states");
    std::unique_ptr<std::vector<uint32_t>> table;
    {
        const nb::gil_scoped_release release;
        const auto limit =
            std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds));
        GrammarBuilder builder(trie, {class_of.data(), next.data(), accepting.data(), states, classes}, most_words,
                               std::chrono::steady_clock::now() + limit);
        table = std::make_unique<std::vector<uint32_t>>(builder.build());
    }
    const size_t words = table->size();
    auto* data = reinterpret_cast<int32_t*>(table->data());
    nb::capsule owner(table.release(), [](void* at) noexcept { delete static_cast<std::vector<uint32_t>*>(at); });
    return Table(data, {words}, owner);
}

uint64_t grammar_hash(Array1<int32_t> table) {
    GrammarHeader header{};
    if (table.size() * sizeof(int32_t) >= sizeof header) std::memcpy(&header, table.data(), sizeof header);
    return header.hash;
}

}  // namespace

void bind_grammar(nb::module_& m) {
    nb::exception<GrammarTooLarge>(m, "GrammarTooLarge", PyExc_ValueError);
    nb::exception<GrammarTooSlow>(m, "GrammarTooSlow", PyExc_ValueError);
    nb::exception<GrammarUnwritable>(m, "GrammarUnwritable", PyExc_ValueError);
    nb::class_<TokenTrie>(m, "TokenTrie")
        .def("__init__", &make_trie, "bytes"_a, "offsets"_a)
        .def_prop_ro("vocabulary_size", &TokenTrie::vocabulary_size);
    m.def("grammar_hash", &grammar_hash, "table"_a, "The hash that a table says it has; 0 of what is no table.");
    m.def("build_grammar", &build_grammar, "trie"_a, "class_of"_a, "next"_a, "accepting"_a, nb::kw_only(),
          "most_words"_a, "seconds"_a,
          nb::sig("def build_grammar(trie: TokenTrie, class_of: NDArray[numpy.uint8], next: NDArray[numpy.int32], "
                  "accepting: NDArray[numpy.uint8], *, most_words: int, seconds: float) -> NDArray[numpy.int32]"),
          "A table of grammar_table.h. Raises GrammarTooLarge, GrammarTooSlow, GrammarUnwritable.");
}
