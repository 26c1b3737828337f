use super::*;

const NIGHT: &str = "The backup runs every night at 02:30 and keeps fourteen copies in the vault.";
const KEY: &str = "복구 키는 24단어로 되어 있고 암호를 잊었을 때 새 암호를 정하는 데 쓴다.";

fn verdict(answer: &str) -> Verdict {
    judge(answer, "When does the backup run?", &[NIGHT, KEY])
}

#[test]
fn marks_are_read_as_models_write_them() {
    for (answer, text, cited) in [
        ("At night [1].", "At night [1].", &[1][..]),
        ("At night [2, 1] or not[1-2].", "At night [2][1] or not[1][2].", &[1, 2]),
        ("At night 【1】 [Passage 2] [^1]", "At night [1] [2] [1]", &[1, 2]),
        ("At night [99].", "At night.", &[]),
        ("At night [1, 99] and [0].", "At night [1] and.", &[1]),
        ("`a[1]` and ```x[2]``` at night", "`a[1]` and ```x[2]``` at night", &[]),
        ("[1", "[1", &[]),
        ("[one] [] [1.5] [1000000000000000000000] [a1]", "[one] [] [1.5] [1000000000000000000000] [a1]", &[]),
    ] {
        let verdict = verdict(answer);
        assert_eq!((verdict.text.as_str(), &verdict.cited[..]), (text, cited), "{answer}");
    }
}

#[test]
fn what_a_passage_holds_is_believed_and_what_it_does_not_is_not() {
    let good = [
        "The backup runs every night at 02:30 [1].",
        "It runs each night at 02:30. [1] Fourteen copies are kept in the vault. [1]",
        "- Every night at 02:30 [1]\n- fourteen copies in the vault [1]",
    ];
    for answer in good {
        assert!(verdict(answer).confidence > 0.7, "{answer}: {}", verdict(answer).confidence);
    }
    let bad = [
        "",
        "[1]",
        "[1][2]",
        "The backup runs every night at 02:30 [99].",
        "The backup runs every night at 04:45.",
        "The vault was sold to the night shift.",
        "Does the backup run every night at 02:30?",
        "It runs.",
        "Whales migrate along the Pacific coast in spring [1].",
        "NO_ANSWER",
        "NO_ANSWER [1]",
        "No answer.",
        "The passages do not mention when the backup runs [1].",
        "문서에서 답을 찾을 수 없습니다 [1].",
        "The quarterly invoice costs 4711 euros [1].",
    ];
    for answer in bad {
        assert!(verdict(answer).confidence < LEAST_CONFIDENCE, "{answer}: {}", verdict(answer).confidence);
    }
}

#[test]
fn each_weakness_lowers_the_confidence() {
    let whole =
        verdict("The backup runs every night at 02:30 [1]. It keeps fourteen copies in the vault [1].").confidence;
    for weaker in [
        "The backup runs every night at 02:30 [1]. It keeps fourteen copies in the vault.",
        "The backup runs every night at 02:30 [1]. It keeps fourteen copies in the vault [2].",
        "The backup runs every night at 02:30 [1]. It keeps fourteen copies in the vault [1][99].",
        "The backup runs every night at 04:45 [1]. It keeps fourteen copies in the vault [1].",
        "The backup runs every night at 02:30 [1]. Whales migrate along the Pacific coast [1].",
    ] {
        let confidence = verdict(weaker).confidence;
        assert!(confidence < whole - 0.05, "{weaker}: {confidence} of {whole}");
    }
}

#[test]
fn a_sentence_without_a_mark_gets_that_of_the_passage_that_holds_it() {
    for (answer, text, attributed) in [
        ("The backup runs every night at 02:30.", "The backup runs every night at 02:30 [1].", 1),
        ("복구 키는 24단어로 되어 있습니다.\n", "복구 키는 24단어로 되어 있습니다 [2].", 1),
        ("- Every night at 02:30\n- fourteen copies", "- Every night at 02:30 [1]\n- fourteen copies [1]", 2),
        (
            "The backup runs every night at 02:30. It keeps fourteen copies in the vault [1].",
            "The backup runs every night at 02:30 [1]. It keeps fourteen copies in the vault [1].",
            1,
        ),
        ("It keeps fourteen copies. Whales migrate north.", "It keeps fourteen copies [1]. Whales migrate north.", 1),
    ] {
        let verdict = verdict(answer);
        assert_eq!((verdict.text.as_str(), verdict.attributed), (text, attributed));
    }
    let marked = verdict("The backup runs every night at 02:30 [1].").confidence;
    let unmarked = verdict("The backup runs every night at 02:30.").confidence;
    assert!((LEAST_CONFIDENCE..marked - 0.1).contains(&unmarked), "{unmarked} of {marked}");
    // Where two hold as much, the one that ranks higher.
    assert_eq!(judge("Fourteen copies.", "How many?", &["x", "fourteen copies", NIGHT]).cited, [2]);
}

#[test]
fn korean_is_compared_without_its_endings() {
    let judged = |answer: &str| judge(answer, "복구 키는 몇 단어인가요?", &[NIGHT, KEY]).confidence;
    assert!(judged("복구 키는 24단어이며, 암호를 잊었을 때 새 암호를 정하는 데 씁니다 [2].") > 0.6);
    assert!(judged("고래는 봄마다 태평양 연안을 따라 이동합니다 [2].") < LEAST_CONFIDENCE);
    // An English answer to a Korean question, though its words are there.
    assert!(judged("The backup runs every night at 02:30 [1].") < 0.6);
    // A Korean answer out of an English passage: only the number can be compared.
    let across = judged("백업은 매일 밤 02:30에 돌아갑니다 [1].");
    assert!((0.5..=1.0).contains(&across), "{across}");
    assert!(judged("백업은 매일 밤 07:15에 돌아갑니다 [1].") < across);
}

#[test]
fn sentences_keep_their_marks() {
    let split =
        |text: &'static str| -> Vec<&str> { sentences(text).into_iter().map(|range| text[range].trim()).collect() };
    assert_eq!(split("One. [1] Two 3.5 [2]. Three"), ["One. [1]", "Two 3.5 [2].", "Three"]);
    assert_eq!(split("하나다.[1][2] 둘\n\n- 셋 [3]"), ["하나다.[1][2]", "둘", "- 셋 [3]"]);
    assert_eq!(split("One, e.g. two [1]. Three."), ["One, e.g. two [1].", "Three."]);
    assert_eq!(split("。[1]"), ["。[1]"]);
    assert_eq!(split(""), Vec::<&str>::new());
}

#[test]
fn a_quotation_brings_no_marks_of_its_own() {
    assert_eq!(quoted(" see [7]\n\nand go \n", "[2]"), "> see ［7］\n>\n> and go [2]");
}

#[test]
fn a_long_answer_takes_no_long_time() {
    let long = "The backup runs every night [1]. [ ` 【 ".repeat(2000);
    let started = std::time::Instant::now();
    assert!(verdict(&long).cited == [1]);
    assert!(started.elapsed().as_secs() < 5, "{:?}", started.elapsed());
}
