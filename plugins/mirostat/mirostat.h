// Mirostat 2 (Basu et al., arXiv 2007.14966, algorithm 2): tokens more surprising than `mu` bits are
// left out, and mu follows the surprise of what was drawn towards tau.
template <class Block>
BLINK_DEV int32_t choose(blink::Choice<Block>& choice) {
    const float kept = choice.kept();
    const float mu = kept > 0.0f ? kept : 2.0f * option::tau;
    const double total = choice.mass(0.0f);
    // surprise = log2(total / weight) <= mu
    const float floor = fminf(1.0f, static_cast<float>(total) * exp2f(-mu));
    const int32_t token = choice.draw(floor);
    const float within = static_cast<float>(choice.mass(floor));
    const float surprise = log2f(within / choice.weight(static_cast<uint32_t>(token)));
    choice.keep(fmaxf(mu - option::eta * (surprise - option::tau), 1e-3f));
    return token;
}
